package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// MaxDrainTimeout bounds a drain: a week.
const MaxDrainTimeout = 7 * 24 * time.Hour

// DrainingSuffix is appended to the path of the admin socket of a gateway that drains while
// its successor runs.
const DrainingSuffix = ".old"

// NewSuffix is appended to the path of an admin socket while it is being created.
const NewSuffix = ".new"

// maxSocketPath is the maximum length of a path in a sockaddr_un, without its NUL.
const maxSocketPath = 107

// ruleName matches valid names of rules, which become labels of metrics.
var ruleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// checker collects errors.
type checker struct{ errs []*FieldError }

// must records an error for path unless ok.
func (k *checker) must(ok bool, path, format string, args ...any) {
	if !ok {
		k.errs = append(k.errs, &FieldError{Path: path, Msg: fmt.Sprintf(format, args...)})
	}
}

// between checks a number, which is passed in the type in which it is printed.
func between[T ~int | ~int64](k *checker, path string, v, lo, hi T) {
	k.must(v >= lo && v <= hi, path, "%v is not between %v and %v", v, lo, hi)
}

// oneOf checks a name.
func oneOf[T ~string](k *checker, path string, v T, all []T) {
	if err := pick(new(T), string(v), all); err != nil {
		k.must(false, path, "%s", err)
	}
}

func (c Config) validate() []*FieldError {
	k := &checker{}
	k.must(c.Schema == schema, "schema", "%q is not %s, the only schema this version reads", c.Schema, schema)
	oneOf(k, "mode", c.Mode, report.Modes())
	k.admin(c.Admin)
	k.devices(c.Devices)
	k.policy(c.Policy)
	k.guard(c.Guard)
	k.carriers(c.Carriers)
	// The rendezvous sockets in shm_dir have names of up to 40 bytes.
	k.absolute("shm_dir", c.ShmDir)
	k.must(len(c.ShmDir) <= maxSocketPath-40, "shm_dir", "%d bytes long, and its sockets have room for %d", len(c.ShmDir), maxSocketPath-40)
	// The soft device sends from ports of the dynamic range.
	between(k, "soft.udp_port", int(c.Soft.UDPPort), 1, 0xbffd)
	oneOf(k, "hw.mixed", c.HW.Mixed, switches())
	oneOf(k, "steering", c.Steering, switches())
	k.inProcess(c)
	k.datagrams(c)
	k.limits(c.Limits)
	between(k, "fallback.negative_cache", c.Fallback.NegativeCache, 100*time.Millisecond, 7*24*time.Hour)
	if p := c.Security.PSKFile; p != "" { // it may be a key by mistake, so it is not repeated
		k.must(isAbsolute(p), "security.psk_file", "not an absolute path, which the name of the file of the keys is")
	}
	k.listen("metrics.listen", c.Metrics.Listen)
	k.advanced(c)
	return k.errs
}

func (k *checker) absolute(field, p string) {
	k.must(isAbsolute(p), field, "%q is not an absolute path", p)
}

func isAbsolute(p string) bool { return path.IsAbs(p) && !strings.ContainsRune(p, 0) }

func (k *checker) admin(p string) {
	k.absolute("admin", p)
	longest := maxSocketPath - len(DrainingSuffix)
	k.must(len(p) <= longest, "admin", "%d bytes long, and a socket has room for %d", len(p), longest)
}

func (k *checker) devices(names []string) {
	seen := make(map[string]bool)
	for i, name := range names {
		field := fmt.Sprintf("devices[%d]", i)
		ok := name != "" && len(name) <= 15 && !strings.ContainsAny(name, "/ \t\n:") && name != "." && name != ".."
		k.must(ok, field, "%q is not the name of a network device", name)
		k.must(name != "lo", field, "the loopback device cannot be used")
		k.must(!seen[name], field, "%q is listed twice", name)
		seen[name] = true
	}
}

func (k *checker) policy(rules []Rule) {
	k.must(len(rules) <= maxRules, "policy", "%d rules; at most %d are possible", len(rules), maxRules)
	k.keys(rules)
	seen := make(map[string]bool)
	for i, r := range rules {
		field := fmt.Sprintf("policy[%d]", i)
		k.must(ruleName.MatchString(r.Name), field+".name", "%q is not a name of letters, digits, '.', '_' and '-', at most 63", r.Name)
		k.must(!seen[r.Name], field+".name", "%q names two rules", r.Name)
		seen[r.Name] = true
		oneOf(k, field+".match.proto", r.Match.Proto, protos())
		if r.Match.Direction != "" {
			oneOf(k, field+".match.direction", r.Match.Direction, directions())
		}
		oneOf(k, field+".action", r.Action, actions())
		if r.Way != "" {
			oneOf(k, field+".way", r.Way, ruleWays())
		}
		k.must(r.Way != report.WayInProcess || r.Match.Proto != report.ProtoUDP, field+".way", "datagrams do not go in process")
		k.must(r.Percent != NoShare, field+".percent", "0%% is written as action: pass")
		k.must(r.Percent == 0 || r.Action != report.ActionPass, field+".percent", "is about rules that carry")
		k.must(r.Match.Direction != report.DirectionServer || !r.outboundOnly(), field+".match.direction", "cgroups and users are known of outbound connections only")
		k.must(r.Action != report.ActionAuto || r.Match.Proto != report.ProtoUDP, field+".action", "auto is about connections (tcp); the datagrams of a rule for udp are carried (accelerate) or not (pass)")
		k.match(field+".match", r.Match)
	}
}

// keys counts the distinct keys that the programs look up, over all rules.
func (k *checker) keys(rules []Rule) {
	four, six, users := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}, map[User]bool{}
	for _, r := range rules {
		for _, p := range r.Match.Peers {
			if p.Addr().Is4() {
				four[p] = true
			} else {
				six[p] = true
			}
		}
		for _, u := range r.Match.Users {
			users[u] = true
		}
	}
	k.must(len(four) <= maxRuleKeys, "policy", "%d IPv4 prefixes of peers; at most %d are possible", len(four), maxRuleKeys)
	k.must(len(six) <= maxRuleKeys, "policy", "%d IPv6 prefixes of peers; at most %d are possible", len(six), maxRuleKeys)
	k.must(len(users) <= maxRuleKeys, "policy", "%d users; at most %d are possible", len(users), maxRuleKeys)
}

func (k *checker) match(field string, m Match) {
	for i, p := range m.Ports {
		k.must(p.First() != 0, fmt.Sprintf("%s.ports[%d]", field, i), "0 is not a port")
	}
	for i, p := range m.Peers {
		k.must(p.IsValid() && p == p.Masked(), fmt.Sprintf("%s.peers[%d]", field, i), "%s is not a masked prefix", p)
	}
	for i, g := range m.Cgroups {
		_, err := path.Match(g, "/")
		ok := err == nil && path.IsAbs(g) && path.Clean(g) == g
		k.must(ok, fmt.Sprintf("%s.cgroups[%d]", field, i), "%q is not a cgroup path such as /system.slice/redis*", g)
	}
}

func (k *checker) carriers(list []report.DeviceKind) {
	seen := make(map[report.DeviceKind]bool)
	for i, d := range list {
		field := fmt.Sprintf("carriers[%d]", i)
		oneOf(k, field, d, report.DeviceKinds())
		k.must(!seen[d], field, "%q is listed twice", d)
		seen[d] = true
	}
}

func (k *checker) limits(l Limits) {
	between(k, "limits.max_flows", l.MaxFlows, 1, 1_000_000)
	between(k, "limits.memory", l.Memory, 1*MiB, 16*TiB)
	between(k, "limits.handshake_timeout", l.HandshakeTimeout, 10*time.Millisecond, 10*time.Second)
	between(k, "limits.hw_flows", l.HWFlows, 1, 1_000_000)
	between(k, "limits.new_flows_per_second", l.NewFlowsPerSecond, 1, 1_000_000)
	between(k, "limits.new_flows_at_once", l.NewFlowsAtOnce, 1, 1024)
	between(k, "limits.drain_timeout", l.DrainTimeout, time.Second, MaxDrainTimeout)
	between(k, "limits.peer_share", l.PeerShare, 1*percent, AllShare)
	// A second is more than a loaded machine and a lossy path need; an hour is less than the
	// patience of most applications.
	between(k, "limits.stall_timeout", l.StallTimeout, time.Second, time.Hour)
}

func (k *checker) inProcess(c Config) {
	p := c.InProcess
	oneOf(k, "in_process.enabled", p.Enabled, switches())
	oneOf(k, "in_process.shaped", p.Shaped, switches())
	oneOf(k, "in_process.between_hosts", p.BetweenHosts, switches())
	k.absolute("in_process.socket", p.Socket)
	k.must(len(p.Socket) <= maxSocketPath, "in_process.socket", "%d bytes long, and a socket has room for %d", len(p.Socket), maxSocketPath)
	k.must(p.Socket != c.Admin, "in_process.socket", "%q is the admin socket", p.Socket)
	between(k, "in_process.calls", p.Calls, 1, math.MaxInt32)
	k.must(p.Spin == NoSpin || p.Spin > 0 && p.Spin <= maxSpin, "in_process.spin", "%v is longer than %v", p.Spin, maxSpin)
	between(k, "in_process.memory", p.Memory, 16*MiB, 1024*TiB)
	k.must(p.Enabled != SwitchOff || c.Steering != SwitchOff, "steering", "off, and in_process.enabled too: nothing is left to do")
}

func (k *checker) listen(field, addr string) {
	if addr == "" {
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		k.must(false, field, "%q is not an address and a port such as 127.0.0.1:9469", addr)
		return
	}
	n, err := strconv.ParseUint(port, 10, 16)
	k.must(err == nil && n != 0, field, "%q: the port is not a number from 1 to 65535", addr)
	k.must(host == "" || net.ParseIP(host) != nil, field, "%q: %s is not an address; names are not looked up: 127.0.0.1, [::1], or nothing for every address", addr, host)
}

func (k *checker) advanced(c Config) {
	k.absolute("state_dir", c.StateDir)
	if c.CgroupPath != "" {
		k.absolute("cgroup_path", c.CgroupPath)
	}
	between(k, "shards", c.Shards, 0, MaxShards)
	oneOf(k, "log.level", c.Log.Level, logLevels())
	oneOf(k, "log.format", c.Log.Format, logFormats())
	oneOf(k, "log.access", c.Log.Access, accessLogs())
}
