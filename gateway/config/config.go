package config

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// schema is the version of the configuration file this package reads.
const schema = "smcgw/v1"

// Config is the whole configuration of a gateway. The zero value is usable:
// WithDefaults fills every zero field with the value listed in configFields.
// A Config read by Load already has its defaults.
type Config struct {
	// Schema names the format of the file. Default and only value: smcgw/v1.
	Schema string `yaml:"schema"`
	// Mode says what the gateway may touch. Default: observe.
	Mode report.Mode `yaml:"mode"`
	// Admin is the path of the admin socket, 1 to 103 bytes, absolute.
	// Default: /run/smcgw/smcgw.sock.
	Admin string `yaml:"admin"`
	// Devices are the network devices whose outgoing connections are looked
	// at. Default: the devices of the default routes, and those with an
	// address that have routes to peers of rules.
	Devices []string `yaml:"devices"`
	// Policy is the rule list, at most maxRules, first match wins. What no rule
	// matches is passed. Default: no rule.
	Policy []Rule `yaml:"policy"`
	// Rollout is the share of the connections that is carried.
	Rollout Rollout `yaml:"rollout"`
	// Guard takes the mode back when carrying does harm.
	Guard Guard `yaml:"guard"`
	// Steering is whether connections are steered into gateways at all: off, or where the
	// kernel cannot, what programs can do in process is what there is. Default: on.
	Steering Switch `yaml:"steering"`
	// InProcess configures what programs with the library do among themselves.
	InProcess InProcess `yaml:"in_process"`
	// Carriers are the RDMA devices in order of preference. A list that is
	// given and empty means that no RDMA device is used. Default: shm, hw, soft; ib, adapters
	// on InfiniBand, only where it is listed.
	Carriers []report.DeviceKind `yaml:"carriers"`
	// ShmDir holds the rendezvous sockets of the shm device.
	// Default: /run/smcgw/shm.
	ShmDir string `yaml:"shm_dir"`
	// Soft configures the soft device.
	Soft Soft `yaml:"soft"`
	// HW configures RDMA adapters.
	HW HW `yaml:"hw"`
	// DatagramPort is the UDP port on which gateways ask each other whether and
	// how datagrams can be carried, and the TCP port of their control connections about
	// what is promoted between hosts; [NoPort] (0 in the file): they are never asked and
	// do not answer, no datagram is carried and nothing is promoted between hosts.
	// Default: 4790.
	DatagramPort OptionalPort `yaml:"datagram_port"`
	// Limits bound what the gateway may use.
	Limits Limits `yaml:"limits"`
	// Fallback says how long a refusal is remembered.
	Fallback Fallback `yaml:"fallback"`
	// Security says which gateways this one believes.
	Security Security `yaml:"security"`
	// Metrics says where Prometheus may scrape, besides the admin socket.
	Metrics Metrics `yaml:"metrics"`

	// StateDir keeps what survives a restart: the off flag.
	// Default: /var/lib/smcgw.
	StateDir string `yaml:"state_dir"`
	// CgroupPath is the cgroup2 mount the programs attach to.
	// Default: found in /proc/self/mountinfo.
	CgroupPath string `yaml:"cgroup_path"`
	// Shards is the number of event loops. Default: half the processors (kept
	// as 0 here). See Loops.
	Shards int `yaml:"shards"`
	// Log says how the daemon logs on stderr.
	Log Log `yaml:"log"`
}

// Rule is one line of the policy. All given parts of Match must hold.
type Rule struct {
	// Name identifies the rule in metrics. Default: rule-N, N counted from 1.
	Name string `yaml:"name"`
	// Match is what the rule is about; an empty Match is every TCP connection.
	Match Match `yaml:"match"`
	// Action is what happens to a matching connection. Default: pass.
	Action report.Action `yaml:"action"`
	// Percent is the share of the matching connections that is carried. Default: that
	// of the rollout.
	Percent Share `yaml:"percent"`
	// Way is the one that the rule is about. Default: any.
	Way report.Way `yaml:"way"`
}

// Match selects connections, or the datagrams of UDP sockets. Within a list any
// entry may hold, all lists that are given must hold.
type Match struct {
	// Proto is the protocol the rule is about; it is about no other. Default: tcp.
	Proto report.Proto `yaml:"proto"`
	// Direction is the side of this host: client of connections that it makes, server of
	// those that it accepts. Default: both.
	Direction report.Direction `yaml:"direction"`
	// Ports are server ports, of either direction. Default: every port.
	Ports []PortRange `yaml:"ports"`
	// Peers are addresses of the other side, masked. Default: every address.
	Peers Prefixes `yaml:"peers"`
	// Cgroups are cgroup2 paths below the mount, with path.Match patterns;
	// they are known for outbound connections only. Default: every cgroup.
	Cgroups []string `yaml:"cgroups"`
	// Users are names and numbers of users; outbound connections only. Default: every user.
	Users []User `yaml:"users"`
}

// InProcess configures the broker of programs that have the library.
type InProcess struct {
	// Enabled is whether they are served. Default: on.
	Enabled Switch `yaml:"enabled"`
	// Socket is the path at which programs ask, 1 to 107 bytes, absolute; the library looks
	// for the default. Default: /run/smcgw/in-process/broker.sock.
	Socket string `yaml:"socket"`
	// Calls is after how many calls that moved bytes a connection is worth asking for, or
	// after [BytesPerCall] for each of them. Default: 32.
	Calls int `yaml:"calls"`
	// Spin is how long a program that waits looks at its rings before it sleeps. Default: off.
	Spin Spin `yaml:"spin"`
	// Memory bounds what the rings of all promoted connections could hold. Default: 64GiB.
	Memory Bytes `yaml:"memory"`
	// Shaped is whether connections are promoted whose path shapes traffic: bytes in rings
	// are not shaped. Default: off.
	Shaped Switch `yaml:"shaped"`
	// BetweenHosts is whether connections are promoted, too, whose other end is on another
	// host, where a rule has the way in-process. Default: off.
	BetweenHosts Switch `yaml:"between_hosts"`
}

// BytesPerCall makes bytes of [InProcess.Calls].
const BytesPerCall = 2 << 10

// Soft configures the device for RoCEv2 over UDP.
type Soft struct {
	// UDPPort is the port the device receives on, on every address of the
	// devices; peers are told. Default: 4791.
	UDPPort uint16 `yaml:"udp_port"`
}

// AlternatePort is used instead where UDPPort is not to be had: an RDMA adapter of the
// host, or the kernel's software RDMA, has it.
func (s Soft) AlternatePort() uint16 { return s.UDPPort + 2 }

// HW configures RDMA adapters. A RoCE network tells by these marks which packets it must
// not drop, or marks for congestion.
type HW struct {
	// TrafficClass is that of the packets: DSCP times four. Default: 0.
	TrafficClass uint8 `yaml:"traffic_class"`
	// Mixed is whether a host without an adapter talks to the adapter of its peer, by the
	// soft device: both hosts have to want that. Default: off.
	Mixed Switch `yaml:"mixed"`
}

// ServiceLevel is that of the packets, the priority in a VLAN tag: the upper three bits of
// the traffic class, which is what switches make of a DSCP unless they are told otherwise.
func (h HW) ServiceLevel() uint8 { return h.TrafficClass >> 5 }

// Limits bound what the gateway may use; beyond them connections stay native.
type Limits struct {
	// MaxFlows is the number of carried flows. Default: 20000.
	MaxFlows int `yaml:"max_flows"`
	// Memory is the hard limit over all rings and buffers. Default: 1GiB.
	Memory Bytes `yaml:"memory"`
	// HandshakeTimeout is the time a negotiation may take, besides four round
	// trips. Default: 200ms.
	HandshakeTimeout time.Duration `yaml:"handshake_timeout"`
	// NewFlowsPerSecond bounds accepted offers and adoptions. Default: 5000.
	NewFlowsPerSecond int `yaml:"new_flows_per_second"`
	// NewFlowsAtOnce bounds connections that this host begins and that are set up at a time;
	// while that takes long an eighth of it. Default: 32.
	NewFlowsAtOnce int `yaml:"new_flows_at_once"`
	// DrainTimeout is how long a gateway that drains serves its connections before
	// it resets what is left. Default: 10m.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// HWFlows is the number of connections that one RDMA adapter carries; those beyond
	// take the next carrier. Default: 1024.
	HWFlows int `yaml:"hw_flows"`
	// PeerShare is how much of the other limits one address may have: of
	// MaxFlows with connections that it begins, of Memory with all, of
	// NewFlowsPerSecond once others would have to do with less. Default: 50%.
	PeerShare Percent `yaml:"peer_share"`
	// StallTimeout is how long a flow may make no progress although there is
	// something to carry and room for it; then it is reset. Default: 1m.
	StallTimeout time.Duration `yaml:"stall_timeout"`
}

// Fallback says how refusals and eaten options are remembered.
type Fallback struct {
	// NegativeCache is how long a peer that declined is left native.
	// Default: 10m.
	NegativeCache time.Duration `yaml:"negative_cache"`
}

// Blackholed is how long a destination is left alone the first time that SYNs with the
// option are lost on the way to it; it doubles every time.
func (f Fallback) Blackholed() time.Duration { return 6 * f.NegativeCache }

// Security says which gateways this one believes.
type Security struct {
	// PSKFile holds the keys that gateways prove to each other to have, one per
	// line (see [LoadKeys]); read at start and reload. Default: empty, every
	// gateway is believed.
	PSKFile string `yaml:"psk_file"`
}

// Metrics says where the metrics are served over TCP.
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
	// Access says which connections have lines of their own. Default: off.
	Access AccessLog `yaml:"access"`
}

// maxRules is the number of policy rules the programs can hold: one bit each.
const maxRules = 64

// maxRuleKeys is the number of prefixes of a family, and of users, that the programs can hold
// twice, besides those of trials: a policy is whole before it takes the place of the one before.
const maxRuleKeys = 8000

// outboundOnly reports whether the rule asks for something that is known only
// of connections made on this host: a cgroup or a user.
func (r Rule) outboundOnly() bool {
	return len(r.Match.Cgroups)+len(r.Match.Users) > 0
}

// oneSided reports whether connections of one direction match only.
func (m Match) oneSided() bool {
	return m.Direction == report.DirectionClient || m.Direction == report.DirectionServer
}
