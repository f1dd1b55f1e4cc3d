package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/ebpf/legs"
)

// Mode says what the programs may do with new connections.
type Mode uint8

// The modes.
const (
	ModeOff     Mode = iota // nothing is offered or accepted
	ModeObserve             // policy is evaluated and counted; nothing is offered or accepted
	ModeEnforce             // offers are made and accepted
)

// Config configures [Open]. With only Legs set it is usable: it offers nothing (ModeOff), on the devices of the default
// routes.
type Config struct {
	// Devices are the devices that carry offers. Default: those of the default routes, and those with an address that
	// have routes to peers of the policy. Connections on all other devices are native (reason address).
	Devices []string
	// InfiniBand makes IPoIB devices get programs; without it they have none.
	InfiniBand bool
	// Generation numbers this gateway in its namespace during an upgrade. The devices are smcgw-a<generation>,
	// smcgw-w<generation> and smcgw-h<generation>. Default: 1.
	Generation int
	// Legs is the namespace of the sockets that face local applications. The caller keeps owning it, and closes it
	// after the datapath.
	Legs *legs.Namespace
	// Beside is the gateway in the same namespace whose connections continue, as [Datapath.Neighbour] of another
	// generation describes it; nil if there is none. The datapath then starts retired, until [Datapath.Activate].
	Beside *Neighbour
	// Counting starts without what only carrying needs: there are no devices and no legs until [Datapath.Carry].
	Counting bool
	// CgroupPath is the cgroup2 mount. Default: found in /proc/self/mountinfo.
	CgroupPath string
	// Mode is the initial mode. Default: ModeOff.
	Mode Mode
	// Waiting keeps new connections native, as those of a gateway that does not beat, until the first [Datapath.SetOff]:
	// the off switch survives restarts, and is not known yet.
	Waiting bool
	// Policy is the initial policy. It has at most MaxRules rules, the first match wins, and a connection without a
	// match is passed.
	Policy []Rule
	// Rollout is the share of the connections selected by rules that is carried. Default: all.
	Rollout Rollout
	// Compare is the initial value for [Datapath.SetCompare].
	Compare bool
	// NeverPorts are ports that stay native unless the matching rule names them. nil means [DefaultNeverPorts]; an
	// empty list means none.
	NeverPorts []uint16
	// BlackholeAfter is how many connections in a row must have been established only after the retry without option
	// before a destination counts as blackholed. Default: 2.
	BlackholeAfter int
	// Retry is how long a blackholed destination stays native the first time; it doubles each time, up to 32 times as
	// long. Default: 1h.
	Retry time.Duration
	// Handshake is the longest time, besides four round trips, that the owner takes to decide about a connection whose
	// SYN-ACK with an accept has come. A SYN that the application's kernel retransmits after that passes without the
	// option, since the owner has never heard of the connection, or is too busy for it. At most 3s count. Default: 3s.
	Handshake time.Duration
	// SetUps is how many connections of this host may be in setup at the same time, at most 1024. Further ones are
	// native (reason rate_limit). While steps of the setup are slow on this host, only an eighth of them. Default: no
	// limit.
	SetUps int
	// HeartbeatTimeout is the age of the heartbeat from which the gateway counts as late; the age from which it counts
	// as gone is fixed (flow.h). Default: 200ms.
	HeartbeatTimeout time.Duration
	// MaxFlows bounds the flow entries, including those of offers. Default: 65536.
	MaxFlows int
	// MaxPeers bounds the remembered peers; the least recently used are evicted. Default: 16384.
	MaxPeers int
	// MaxDatagrams bounds the entries of carried datagram tuples, and, up to 16384, those of native ones. Roughly the
	// least recently used are evicted, and what user space then writes to the app TUN for them is dropped, so leave
	// room beyond the tuples in use. Each entry takes 150 bytes, allocated at the start. Default: 16384.
	MaxDatagrams int
	// DatagramPort is the UDP port on which gateways talk to each other; its packets are never steered. Default: 4790.
	DatagramPort uint16
	// Logger logs changes of devices, and problems. Default: discards.
	Logger *slog.Logger

	answers int // per second and processor; set only by tests, default answerRate
	maxOwn  int // own addresses, and devices; set only by tests, 0: as in maps.h

	parse       func() (*bpf.CollectionSpec, error) // returns the object; set only by tests, default loadSmcgw
	kernelTypes *btf.Cache                          // set only by tests; nil: each load looks it up
}

// DefaultNeverPorts returns the ports whose loss would cost the operator the host or the cluster. The gateway adds the
// port of its metrics.
func DefaultNeverPorts() []uint16 {
	return []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791}
}

// withDefaults returns c with its zero fields set to the defaults.
func (c Config) withDefaults() Config {
	c.Generation = cmp.Or(c.Generation, 1)
	c.BlackholeAfter = cmp.Or(c.BlackholeAfter, 2)
	c.Retry = cmp.Or(c.Retry, time.Hour)
	c.Handshake = cmp.Or(c.Handshake, 3*time.Second)
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 200*time.Millisecond)
	c.MaxFlows = cmp.Or(c.MaxFlows, 1<<16)
	c.MaxPeers = cmp.Or(c.MaxPeers, 1<<14)
	c.MaxDatagrams = cmp.Or(c.MaxDatagrams, 1<<14)
	c.DatagramPort = cmp.Or(c.DatagramPort, 4790)
	c.answers = cmp.Or(c.answers, answerRate)
	if c.NeverPorts == nil {
		c.NeverPorts = DefaultNeverPorts()
	}
	if c.parse == nil {
		c.parse = loadSmcgw
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns all problems of the configuration at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.Generation < 1 || c.Generation > 9 {
		bad("generation", "%d is not in 1..9", c.Generation)
	}
	if c.Beside != nil && c.Beside.Generation == c.Generation {
		bad("generation", "%d is the neighbour's", c.Generation)
	}
	if c.Mode > ModeEnforce {
		bad("mode", "%d is unknown", c.Mode)
	}
	if c.BlackholeAfter < 1 || c.Retry < 0 || c.HeartbeatTimeout < 0 || c.Handshake < 0 {
		bad("fallback", "negative value")
	}
	if c.MaxFlows < 16 || c.MaxFlows > 1<<22 || c.MaxPeers < 16 || c.MaxPeers > 1<<22 {
		bad("limits", "max_flows and max_peers must be in 16..4194304")
	}
	if c.MaxDatagrams < 16 || c.MaxDatagrams > 1<<22 {
		bad("limits", "max_datagrams must be in 16..4194304")
	}
	if _, err := CompilePolicy(c.Policy, c.NeverPorts); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// mostMTU returns the largest MTU of the gateway's devices. With InfiniBand a program adds a link header to what leaves
// an IPoIB device for the legs and to what netstack sends, which bounds the size of these packets.
func (c Config) mostMTU() int {
	if c.InfiniBand {
		return headMTU
	}
	return maxMTU
}

// Names of the app TUN, the wire TUN, and the two ends of the veth pair that leads to the legs.
func (c Config) appName() string  { return fmt.Sprintf("%sa%d", netdev.OwnPrefix, c.Generation) }
func (c Config) wireName() string { return fmt.Sprintf("%sw%d", netdev.OwnPrefix, c.Generation) }
func (c Config) hostName() string { return fmt.Sprintf("%sh%d", netdev.OwnPrefix, c.Generation) }
func (c Config) legName() string  { return fmt.Sprintf("%sg%d", netdev.OwnPrefix, c.Generation) }
