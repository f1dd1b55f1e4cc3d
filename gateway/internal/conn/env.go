package conn

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/connlog"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// Env is what the connections of one gateway need of it. Its fields are set before the
// first connection and stay; what they point to is safe for concurrent use. It must not be
// copied after that.
type Env struct {
	Log               *slog.Logger
	GatewayID, HostID [16]byte
	Version           string // which peers are told

	Steering  Steering
	Stack     *netstack.Stack    // adopts connections of clients
	Legs      host.Legs          // dials applications of servers
	Accepting host.LegListener   // accepts applications of clients
	Providers []carrier.Provider // in order of preference
	Datagrams Datagrams

	Peers  *peers.Table
	Policy negotiate.CachePolicy // what is remembered about peers
	Keys   *Keyring
	Pulse  *loop.Pulse
	// HandshakeTimeout is that of the configuration in force.
	HandshakeTimeout func() time.Duration

	Counters       *Counters
	Lines          *connlog.Log // about connections
	Closed, Native *report.History
	Feed           *report.Feed    // nil: none
	Faults         faults.Injector // nil: none

	Context  context.Context // ends with the gateway
	Draining <-chan struct{} // closed when the gateway is going down
	// Work counts what has to come to an end before the gateway does. A connection whose
	// handshake begins, by Adopt or Serve, has been counted by the caller.
	Work *sync.WaitGroup
	// Unlink takes a connection out of the gateway's table, once or more.
	Unlink func(f *Flow)
	// Die ends the process: panics have become frequent.
	Die func()

	seen   negotiate.Seen // PROPOSALs that were believed
	panics panics
}

// Steering is what connections need of the datapath below the gateway. It has more than
// seven methods because the datapath is one object on every host.
type Steering interface {
	host.Entries
	ProveAgain()
	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error
}

// Datagrams is what connections tell, and are told by, the engine that carries datagrams.
type Datagrams interface {
	// Port returns the port at which the engine of this gateway is asked; 0: it has none.
	Port() uint16
	// News tells what the peer of a connection said about its own engine.
	News(t ebpf.Tuple, port uint16, gateway [16]byte)
}

// Opening is what a connection is from its first packet on.
type Opening struct {
	ID    uint64
	Side  report.Side
	Tuple host.Tuple
	ISN   uint32        // of the connection's SYN: the app's (client) or the peer's (server)
	Shard *loop.Shard   // serves it, for life
	Trial *config.Trial // it belongs to, also when that has ended; nil: none
}

// New returns a connection that has begun: Adopt or Serve go on with it.
func (e *Env) New(o Opening) *Flow {
	f := &Flow{Opening: o, env: e, start: time.Now(), gone: make(chan struct{}), core: life.New(o.Side)}
	f.noted()
	if o.Side == report.SideServer {
		f.Share.Begin(e.Peers, f.Peer(), f.start)
	}
	return f
}

// Release gives a client's connection back that there is no flow for: its application's
// SYN goes out again, bare.
func (e *Env) Release(t host.Tuple, isn uint32, syn []byte) {
	(&Flow{Opening: Opening{Tuple: t, ISN: isn}, env: e, syn: syn}).entryReleased()
}

// returnSYN gives a peer's SYN to the kernel as if it had just arrived.
func (e *Env) returnSYN(t host.Tuple, isn uint32, raw []byte) {
	et := ebpf.Tuple(t)
	if err := e.Steering.Transition(et, isn, ebpf.StateReturned, ebpf.StateWire, ebpf.StateServing, ebpf.StateRaw, ebpf.StateDead); err != nil {
		return // replaced or gone: the client's retransmission is native
	}
	if err := e.Steering.InjectApp(raw); err != nil {
		_ = e.Steering.Delete(et, isn)
	}
}
