package config

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// schema is the version of the configuration file that this package reads.
const schema = "smcgw/v1"

// Config is the complete configuration of a gateway. The zero value is usable: WithDefaults
// fills every zero field with the value listed in configFields. A Config read by Load already
// has its defaults.
type Config struct {
	// Schema is the format of the file. Default and only value: smcgw/v1.
	Schema string `yaml:"schema"`
	// Mode says what the gateway may touch. Default: observe.
	Mode report.Mode `yaml:"mode"`
	// Admin is the path of the admin socket, 1 to 103 bytes, absolute.
	// Default: /run/smcgw/smcgw.sock.
	Admin string `yaml:"admin"`
	// Devices are the network devices whose outgoing connections are handled. Default: the
	// devices of the default routes, and those with an address that have routes to peers of
	// rules.
	Devices []string `yaml:"devices"`
	// Policy is the list of rules, at most maxRules; the first match wins. What no rule
	// matches is passed. Default: no rule.
	Policy []Rule `yaml:"policy"`
	// Rollout is the share of the connections that is carried.
	Rollout Rollout `yaml:"rollout"`
	// Guard sets the mode back to observe when carrying does harm.
	Guard Guard `yaml:"guard"`
	// Steering says whether connections are steered into gateways at all. If it is off, or
	// the kernel cannot steer, only promotion in process is available. Default: on.
	Steering Switch `yaml:"steering"`
	// InProcess configures connections between programs with the library.
	InProcess InProcess `yaml:"in_process"`
	// Carriers are the RDMA devices in order of preference. An explicitly empty list means
	// that no RDMA device is used. Default: shm, hw, soft. ib, adapters on InfiniBand, is
	// used only if listed.
	Carriers []report.DeviceKind `yaml:"carriers"`
	// ShmDir holds the rendezvous sockets of the shm device.
	// Default: /run/smcgw/shm.
	ShmDir string `yaml:"shm_dir"`
	// Soft configures the soft device.
	Soft Soft `yaml:"soft"`
	// HW configures RDMA adapters.
	HW HW `yaml:"hw"`
	// DatagramPort is the UDP port on which gateways ask each other whether and how datagrams
	// can be carried, and the TCP port of their control connections for promotion between
	// hosts. With [NoPort] (0 in the file) the gateway neither queries nor answers, no
	// datagram is carried, and nothing is promoted between hosts. Default: 4790.
	DatagramPort OptionalPort `yaml:"datagram_port"`
	// Limits bound the resources of the gateway.
	Limits Limits `yaml:"limits"`
	// Fallback says how long a refusal is remembered.
	Fallback Fallback `yaml:"fallback"`
	// Security says which gateways this one trusts.
	Security Security `yaml:"security"`
	// Metrics says where Prometheus may scrape, besides the admin socket.
	Metrics Metrics `yaml:"metrics"`

	// StateDir keeps what survives a restart: the off flag.
	// Default: /var/lib/smcgw.
	StateDir string `yaml:"state_dir"`
	// CgroupPath is the cgroup2 mount the programs attach to.
	// Default: found in /proc/self/mountinfo.
	CgroupPath string `yaml:"cgroup_path"`
	// Shards is the number of event loops. Default: half the processors (stored as 0). See
	// Loops.
	Shards int `yaml:"shards"`
	// Log configures the daemon's log on stderr.
	Log Log `yaml:"log"`
}

// Rule is one rule of the policy. All parts of Match that are given must hold.
type Rule struct {
	// Name identifies the rule in metrics. Default: rule-N, with N counted from 1.
	Name string `yaml:"name"`
	// Match selects what the rule applies to; an empty Match selects every TCP connection.
	Match Match `yaml:"match"`
	// Action is what happens to matching connections. Default: pass.
	Action report.Action `yaml:"action"`
	// Percent is the share of the matching connections that is carried. Default: that of the
	// rollout.
	Percent Share `yaml:"percent"`
	// Way is the way that the rule applies to. Default: any.
	Way report.Way `yaml:"way"`
}

// Match selects connections, or the datagrams of UDP sockets. It matches if, for every list
// that is given, any entry matches.
type Match struct {
	// Proto is the only protocol that the rule applies to. Default: tcp.
	Proto report.Proto `yaml:"proto"`
	// Direction is the side of this host: client for connections that it makes, server for
	// those that it accepts. Default: both.
	Direction report.Direction `yaml:"direction"`
	// Ports are server ports, in either direction. Default: every port.
	Ports []PortRange `yaml:"ports"`
	// Peers are addresses of the other side, masked. Default: every address.
	Peers []netip.Prefix `yaml:"peers"`
	// Cgroups are cgroup2 paths below the mount, with path.Match patterns. They are known
	// only for outbound connections. Default: every cgroup.
	Cgroups []string `yaml:"cgroups"`
	// Users are names or IDs of users, for outbound connections only. Default: every user.
	Users []User `yaml:"users"`
}

// InProcess configures the broker for programs that have the library.
type InProcess struct {
	// Enabled says whether such programs are served. Default: on.
	Enabled Switch `yaml:"enabled"`
	// Socket is the path on which programs connect to the broker, 1 to 107 bytes, absolute;
	// the library looks for the default. Default: /run/smcgw/in-process/broker.sock.
	Socket string `yaml:"socket"`
	// Calls is the number of calls that moved bytes after which a connection asks to be
	// promoted; so does moving [BytesPerCall] times as many bytes. Default: 32.
	Calls int `yaml:"calls"`
	// Spin is how long a waiting program polls its rings before it sleeps. Default: off.
	Spin Spin `yaml:"spin"`
	// Memory bounds the total size of the rings of all promoted connections. Default: 64GiB.
	Memory Bytes `yaml:"memory"`
	// Shaped says whether to promote connections whose path shapes traffic: bytes in rings
	// are not shaped. Default: off.
	Shaped Switch `yaml:"shaped"`
	// BetweenHosts says whether to promote connections whose other end is on another host as
	// well, if a rule has the way in-process. Default: off.
	BetweenHosts Switch `yaml:"between_hosts"`
}

// BytesPerCall converts bytes to calls for [InProcess.Calls].
const BytesPerCall = 2 << 10

// Soft configures the device for RoCEv2 over UDP.
type Soft struct {
	// UDPPort is the port that the device receives on, on every address of the devices. Peers
	// are told the port. Default: 4791.
	UDPPort uint16 `yaml:"udp_port"`
}

// AlternatePort returns the port to use if UDPPort is not available because an RDMA adapter
// of the host, or the kernel's software RDMA, has it.
func (s Soft) AlternatePort() uint16 { return s.UDPPort + 2 }

// HW configures RDMA adapters. A RoCE network recognizes by these marks the packets that it
// must not drop, or that it marks for congestion.
type HW struct {
	// TrafficClass is the traffic class of the packets: DSCP times four. Default: 0.
	TrafficClass uint8 `yaml:"traffic_class"`
	// Mixed says whether a host without an adapter talks to its peer's adapter through the
	// soft device. Both hosts must enable it. Default: off.
	Mixed Switch `yaml:"mixed"`
}

// ServiceLevel returns the service level of the packets, the priority in a VLAN tag: the
// upper three bits of the traffic class, which is how switches map a DSCP by default.
func (h HW) ServiceLevel() uint8 { return h.TrafficClass >> 5 }

// Limits bound the resources of the gateway; beyond them, connections stay native.
type Limits struct {
	// MaxFlows is the maximum number of carried flows. Default: 20000.
	MaxFlows int `yaml:"max_flows"`
	// Memory is the hard limit on all rings and buffers together. Default: 1GiB.
	Memory Bytes `yaml:"memory"`
	// HandshakeTimeout is how long a negotiation may take, in addition to four round trips.
	// Default: 200ms.
	HandshakeTimeout time.Duration `yaml:"handshake_timeout"`
	// NewFlowsPerSecond bounds accepted offers and adoptions. Default: 5000.
	NewFlowsPerSecond int `yaml:"new_flows_per_second"`
	// NewFlowsAtOnce bounds the connections of this host that are being set up at a time.
	// While setup is slow the bound is an eighth of it. Default: 32.
	NewFlowsAtOnce int `yaml:"new_flows_at_once"`
	// DrainTimeout is how long a draining gateway serves its connections before it resets the
	// rest. Default: 10m.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// HWFlows is the number of connections that one RDMA adapter carries; more take the next
	// carrier. Default: 1024.
	HWFlows int `yaml:"hw_flows"`
	// PeerShare is the part of the other limits that one address may use: of MaxFlows for
	// connections that it begins, of Memory for all its connections, and of NewFlowsPerSecond
	// once others would get less. Default: 50%.
	PeerShare Share `yaml:"peer_share"`
	// StallTimeout is how long a flow may make no progress although there are bytes to carry
	// and room for them, before it is reset. Default: 1m.
	StallTimeout time.Duration `yaml:"stall_timeout"`
}

// Fallback says how refusals and lost options are remembered.
type Fallback struct {
	// NegativeCache is how long a peer that declined stays native. Default: 10m.
	NegativeCache time.Duration `yaml:"negative_cache"`
}

// Blackholed returns how long a destination stays native the first time that SYNs with the
// option are lost on the way to it. It doubles each time.
func (f Fallback) Blackholed() time.Duration { return 6 * f.NegativeCache }

// Security says which gateways this one trusts.
type Security struct {
	// PSKFile holds the keys that gateways must prove to each other to possess, one per line
	// (see [LoadKeys]). It is read at start and at reload. Default: empty, every gateway is
	// trusted.
	PSKFile string `yaml:"psk_file"`
}

// Metrics says where metrics are served over TCP.
type Metrics struct {
	// Listen is host:port, or empty for the admin socket only. Default: empty.
	Listen string `yaml:"listen"`
}

// Log configures the daemon's log on stderr.
type Log struct {
	// Level is debug, info, warn or error. Default: info.
	Level LogLevel `yaml:"level"`
	// Format is auto, text or json; auto is text on a terminal and json
	// elsewhere. Default: auto.
	Format LogFormat `yaml:"format"`
	// Access says which connections get log lines of their own. Default: off.
	Access AccessLog `yaml:"access"`
}

// maxRules is the number of policy rules that the programs can hold: one bit each.
const maxRules = 64

// maxRuleKeys is the number of prefixes per family, and of users, of a policy. The programs
// can hold twice as many, besides those of trials, because a policy is complete before it
// replaces the previous one.
const maxRuleKeys = 8000

// outboundOnly reports whether the rule matches on a cgroup or a user, which are known only
// for connections made by this host.
func (r Rule) outboundOnly() bool {
	return len(r.Match.Cgroups)+len(r.Match.Users) > 0
}

// oneSided reports whether only connections in one direction match.
func (m Match) oneSided() bool {
	return m.Direction == report.DirectionClient || m.Direction == report.DirectionServer
}
