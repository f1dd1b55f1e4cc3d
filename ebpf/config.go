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
	ModeObserve             // policy is evaluated and counted, nothing is offered or accepted
	ModeEnforce             // offers are made and accepted
)

// Config configures [Open]. With nothing but Legs it is usable: it offers nothing
// (ModeOff) on the devices of the default routes.
type Config struct {
	// Devices carry offers. Default: the devices of the default routes and
	// those with an address that have routes to peers of the policy. On all
	// other devices a connection is native (reason address).
	Devices []string
	// InfiniBand gives devices of IPoIB programs, which they have not without it.
	InfiniBand bool
	// Generation numbers this gateway in its namespace during an upgrade; the
	// devices are smcgw-a<generation>, smcgw-w<generation> and
	// smcgw-h<generation>. Default: 1.
	Generation int
	// Legs is the namespace of the sockets that face local applications. It stays
	// the caller's, which closes it after the datapath.
	Legs *legs.Namespace
	// Beside is the gateway whose connections go on in the same namespace, as
	// [Datapath.Neighbour] of another generation describes it; nil if none.
	// The datapath then begins retired, until [Datapath.Activate].
	Beside *Neighbour
	// Counting begins without what only carrying takes, until [Datapath.Carry]: there are
	// neither devices nor legs.
	Counting bool
	// CgroupPath is the cgroup2 mount. Default: found in /proc/self/mountinfo.
	CgroupPath string
	// Mode of the start. Default: ModeOff.
	Mode Mode
	// Off is the switch that survives restarts, as it is at the start.
	Off bool
	// Policy of the start, at most MaxRules, first match wins; what no rule
	// matches is passed.
	Policy []Rule
	// Rollout is the share of the connections that rules select which is carried.
	// Default: all.
	Rollout Rollout
	// Compare is that of [Datapath.SetCompare].
	Compare bool
	// NeverPorts are refused unless the matching rule names them. nil means
	// [DefaultNeverPorts]; an empty list means none.
	NeverPorts []uint16
	// BlackholeAfter connections in a row that were established only after the
	// bare retry blackhole a destination. Default: 2.
	BlackholeAfter int
	// Retry is the first time a blackholed destination stays native; it doubles
	// each time, up to 32 times as long. Default: 1h.
	Retry time.Duration
	// Handshake is the longest the owner takes to decide about a connection whose
	// SYN-ACK with an accept has come, besides four round trips. A SYN that the
	// application's kernel sends again after it leaves: the owner has never heard of
	// the connection, or is too busy for it. At most 3s count. Default: 3s.
	Handshake time.Duration
	// SetUps is how many connections of this host may be set up at a time, at most 1024: one
	// that begins beyond them is native (reason rate_limit). While steps of that
	// take long on this host, an eighth of them. Default: any number.
	SetUps int
	// HeartbeatTimeout is the age at which the gateway counts as gone.
	// Default: 200ms.
	HeartbeatTimeout time.Duration
	// MaxFlows bounds the flow entries, including offered ones. Default: 65536.
	MaxFlows int
	// MaxPeers bounds the remembered peers; the least recently used are
	// forgotten. Default: 16384.
	MaxPeers int
	// MaxDatagrams bounds the entries of carried datagram tuples, and, up to
	// 16384, those of native ones. The least recently used are forgotten, roughly,
	// and what user space then writes to A for them is dropped: leave room beyond
	// the tuples it works on. An entry takes 150 bytes, from the start on.
	// Default: 16384.
	MaxDatagrams int
	// DatagramPort is the UDP port on which gateways talk with each other; its
	// packets are never steered. Default: 4790.
	DatagramPort uint16
	// Logger receives changes of devices and problems. Default: discards.
	Logger *slog.Logger

	answers int // a second and processor; tests only, default answerRate
	maxOwn  int // own addresses, and devices; tests only, 0: as in maps.h

	parse       func() (*bpf.CollectionSpec, error) // gives the object; tests only, default loadSmcgw
	kernelTypes *btf.Cache                          // tests only, nil: each load looks for itself
}

// DefaultNeverPorts returns the ports whose loss would cost the operator the
// host, or the cluster; the gateway adds that of its metrics.
func DefaultNeverPorts() []uint16 {
	return []uint16{22, 53, 179, 2379, 6443, 10250, 4790, 4791}
}

// withDefaults fills the zero fields.
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

// Validate reports all problems of the configuration at once.
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

// Names of the TUN devices, app side and wire side, and of the ends of the pair
// that leads to the legs.
// mostMTU is that of the devices of the gateway at most. What leaves an IPoIB device for the
// legs, and what netstack sends, gets a link header from a program.
func (c Config) mostMTU() int {
	if c.InfiniBand {
		return headMTU
	}
	return maxMTU
}

func (c Config) appName() string  { return fmt.Sprintf("%sa%d", netdev.OwnPrefix, c.Generation) }
func (c Config) wireName() string { return fmt.Sprintf("%sw%d", netdev.OwnPrefix, c.Generation) }
func (c Config) hostName() string { return fmt.Sprintf("%sh%d", netdev.OwnPrefix, c.Generation) }
func (c Config) legName() string  { return fmt.Sprintf("%sg%d", netdev.OwnPrefix, c.Generation) }
