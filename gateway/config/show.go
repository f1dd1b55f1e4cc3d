package config

import (
	"bytes"
	"encoding"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/report"
)

// origin returns the origin of the field at path: "FILE:LINE" or "default".
func (f *File) origin(path string) string {
	if line := f.lines[path]; line > 0 {
		return fmt.Sprintf("%s:%d", f.Name, line)
	}
	return "default"
}

// YAML renders the effective configuration, with the origin of each field as a comment. The
// text is itself a configuration with the same meaning.
func (f *File) YAML() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(f.node(reflect.ValueOf(&f.Config).Elem(), "")); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return out.Bytes(), nil
}

// isScalar reports whether v is written as a single value.
func isScalar(v reflect.Value) bool {
	return v.Type() == reflect.TypeFor[netip.Prefix]() || v.Type() == reflect.TypeFor[User]() || v.Kind() != reflect.Struct && v.Kind() != reflect.Slice
}

// node converts a value to YAML.
func (f *File) node(v reflect.Value, path string) *yaml.Node {
	switch {
	case isScalar(v):
		return scalarNode(v)
	case v.Kind() == reflect.Slice:
		return f.listNode(v, path)
	default:
		return f.mappingNode(v, path)
	}
}

func (f *File) mappingNode(v reflect.Value, path string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		sub := fieldPath(path, name)
		val := f.node(v.Field(i), sub)
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: name}
		// The encoder loses a comment on a block value; in a block, each field has its
		// origin.
		if val.Kind == yaml.ScalarNode || val.Style == yaml.FlowStyle {
			val.LineComment = f.origin(sub)
		}
		n.Content = append(n.Content, key, val)
	}
	return n
}

func (f *File) listNode(v reflect.Value, path string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range v.Len() {
		n.Content = append(n.Content, f.node(v.Index(i), fmt.Sprintf("%s[%d]", path, i)))
	}
	if v.Len() == 0 || isScalar(v.Index(0)) {
		n.Style = yaml.FlowStyle
	}
	return n
}

// scalarNode renders a leaf the way the decoder parses it.
func scalarNode(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: scalarText(v)}
	if u, ok := reflect.TypeAssert[User](v); v.Kind() == reflect.String || ok && u.Name != "" {
		n.Tag = "!!str" // the encoder quotes what would not be read as a string
	}
	return n
}

func scalarText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return shortDuration(x)
	case encoding.TextMarshaler:
		if b, err := x.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v.Interface())
}

// shortDuration drops the zero parts, as in 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if d >= time.Minute && d%time.Minute == 0 {
		s = s[:len(s)-len("0s")]
	}
	if d >= time.Hour && d%time.Hour == 0 {
		s = s[:len(s)-len("0m")]
	}
	return s
}

// neverPorts stay native unless a rule names them: losing one of them to a bug costs the
// operator the host, or the cluster.
var neverPorts = []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791}

// NeverPorts returns the ports that are carried only by a rule that names them: the
// never-list, the metrics port, and the ports on which gateways talk to each other. The
// datapath applies the exception rule by rule: a rule that names a port does not open it to
// other rules, nor to the other protocol.
func (c Config) NeverPorts() []uint16 {
	list := append(slices.Clone(neverPorts), c.OwnPorts()...)
	if _, port, err := net.SplitHostPort(c.Metrics.Listen); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
			list = append(list, uint16(n))
		}
	}
	seen := make(map[uint16]bool)
	return slices.DeleteFunc(list, func(p uint16) bool {
		twice := seen[p]
		seen[p] = true
		return twice
	})
}

// CgroupMark is a file that every directory of cgroup2 has, and none of cgroup1.
const CgroupMark = "cgroup.controllers"

// Notes lists what is valid but may not do what its author expects.
func (f *File) Notes() (notes []string) {
	for i, r := range f.Config.Policy {
		field := fmt.Sprintf("policy[%d]", i)
		if _, given := f.lines[field+".action"]; !given {
			notes = append(notes, fmt.Sprintf("%s (%s): has no action, and passes what it matches: action: accelerate carries it", field, r.Name))
		}
	}
	return slices.Concat(notes, f.notes, f.Config.notes())
}

// notes returns the notes about values.
func (c Config) notes() []string {
	var notes []string
	note := func(cond bool, format string, args ...any) {
		if cond {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	carrying := slices.IndexFunc(c.Policy, func(r Rule) bool { return r.Action != report.ActionPass }) >= 0
	note(!carrying, "policy: no rule accelerates: every connection stays native")
	note(carrying && c.Mode != report.ModeEnforce, "mode: %s: nothing is carried", c.Mode)
	note(len(c.Carriers) == 0, "carriers: the list is empty: RDMA is never used")
	for _, name := range c.Devices {
		_, err := net.InterfaceByName(name)
		note(err != nil, "devices: there is no network device %s in this network namespace: see ip link", name)
	}
	for i, r := range c.Policy {
		field := fmt.Sprintf("policy[%d] (%s)", i, r.Name)
		note(r.outboundOnly(), "%s: cgroups and users are known of outbound connections only: the rule never matches inbound ones", field)
		if first := slices.IndexFunc(c.Policy[:i], func(f Rule) bool { return f.Match.covers(r.Match) && !c.leaves(f, r) }); first >= 0 {
			note(true, "%s: is never reached: policy[%d] (%s) matches all that it does: put it before that", field, first, c.Policy[first].Name)
		}
		note(c.Guard.Compares() && r.Action != report.ActionPass && r.Match.Direction != report.DirectionServer && r.Match.Proto != report.ProtoUDP && c.shareOf(r) == AllShare,
			"%s: percent is 100%%, which leaves guard.slower no native connections to compare with: 95%% would", field)
		note(r.carriesDatagrams() && c.DatagramPort.Port() == 0, "%s: datagram_port is 0: no datagram is carried", field)
		for _, p := range r.Match.Ports {
			note(r.Action != report.ActionPass && p.Single() && slices.Contains(neverPorts, p.First()), "%s: port %v is on the never-list and is carried because the rule names it", field, p)
		}
	}
	note(occupied(c.InProcess.Socket), "in_process.socket: %s is there and is no socket: none can be made in its place", c.InProcess.Socket)
	host, _, err := net.SplitHostPort(c.Metrics.Listen)
	note(err == nil && !isLoopback(host), "metrics.listen: %s can be reached from other hosts, without authentication", strings.TrimSpace(c.Metrics.Listen))
	return notes
}

// Hindrances returns an error for everything on this host that keeps a gateway from starting
// with the file, which is valid in itself. runsAs is the account of the gateway, if it is known.
func (f *File) Hindrances(runsAs Account) error {
	var found []*FieldError
	fail := func(path, format string, args ...any) {
		found = append(found, &FieldError{Path: path, Line: f.lines[path], Msg: fmt.Sprintf(format, args...) + ": the gateway will not start with it"})
	}
	c := f.Config
	if occupied(c.Admin) {
		fail("admin", "%s is there and is no socket", c.Admin)
	}
	if err := c.checkCgroup(); err != nil && c.Steering != SwitchOff {
		fail("cgroup_path", "%v", err)
	}
	if err := runsAs.loadKeys(c.Security.PSKFile); err != nil {
		fail("security.psk_file", "%v", err)
	}
	return joinFieldErrors(found)
}

// Cgroup returns cgroup_path, which must be a directory of cgroup2 if it is not empty.
func (c Config) Cgroup() (string, error) {
	if err := c.checkCgroup(); err != nil {
		return "", fmt.Errorf("cgroup_path: %w", err)
	}
	return c.CgroupPath, nil
}

func (c Config) checkCgroup() error {
	if c.CgroupPath == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(c.CgroupPath, CgroupMark)); err != nil {
		return fmt.Errorf("%s is no directory of cgroup2", c.CgroupPath)
	}
	return nil
}

// occupied reports whether something other than a socket is at a path.
func occupied(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.Mode().Type() != os.ModeSocket
}

// shareOf returns the share of a rule's connections that is carried initially.
func (c Config) shareOf(r Rule) Share {
	if r.Percent != 0 {
		return r.Percent
	}
	return c.Rollout.Percent
}

// leaves reports whether a rule that carries leaves a port of the never-list to a later rule
// that names it.
func (c Config) leaves(first, later Rule) bool {
	return first.Action != report.ActionPass && later.Action != report.ActionPass && slices.ContainsFunc(c.NeverPorts(), func(p uint16) bool {
		return later.Match.names(p) && !first.Match.names(p)
	})
}

// names reports whether the match names a port by itself, rather than within a range.
func (m Match) names(p uint16) bool { return slices.Contains(m.Ports, newPortRange(p, p)) }

// covers reports whether m matches everything that other matches. It may return false
// negatives, because cgroup patterns are compared as texts.
func (m Match) covers(other Match) bool {
	inPeers := func(p netip.Prefix) bool {
		return slices.ContainsFunc(m.Peers, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
	}
	inPorts := func(p PortRange) bool {
		return slices.ContainsFunc(m.Ports, func(q PortRange) bool { return q.Has(p.First()) && q.Has(p.Last()) })
	}
	return m.Proto == other.Proto && (!m.oneSided() || m.Direction == other.Direction) && includes(m.Cgroups, other.Cgroups) &&
		(len(m.Ports) == 0 || len(other.Ports) > 0 && !slices.ContainsFunc(other.Ports, func(p PortRange) bool { return !inPorts(p) })) &&
		(len(m.Peers) == 0 || len(other.Peers) > 0 && !slices.ContainsFunc(other.Peers, func(p netip.Prefix) bool { return !inPeers(p) })) &&
		includes(m.UIDs(), other.UIDs())
}

// includes reports whether list contains all of other; an empty list stands for everything.
func includes[T comparable](list, other []T) bool {
	return len(list) == 0 || len(other) > 0 && !slices.ContainsFunc(other, func(v T) bool { return !slices.Contains(list, v) })
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
