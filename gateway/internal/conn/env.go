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

// Env is what the connections of one gateway need from it. Its fields are set before the
// first connection and do not change; what they point to is safe for concurrent use. It must
// not be copied after that.
type Env struct {
	Log               *slog.Logger
	GatewayID, HostID [16]byte
	Version           string // sent to peers

	Steering  Steering
	Stack     *netstack.Stack    // adopts clients' connections
	Legs      host.Legs          // dials the applications of servers
	Accepting host.LegListener   // accepts the applications of clients
	Providers []carrier.Provider // in order of preference
	Datagrams Datagrams

	Peers  *peers.Table
	Policy negotiate.CachePolicy // what to remember about peers
	Keys   *Keyring
	Pulse  *loop.Pulse
	// HandshakeTimeout returns the handshake timeout of the current configuration.
	HandshakeTimeout func() time.Duration

	Counters       *Counters
	Lines          *connlog.Log // log lines about connections
	Closed, Native *report.History
	Feed           *report.Feed    // nil: none
	Faults         faults.Injector // nil: none

	Context  context.Context // ends with the gateway
	Draining <-chan struct{} // closed when the gateway starts to shut down
	// Work counts what must finish before the gateway ends. The caller of Adopt or Serve has
	// already counted the connection whose handshake that call begins.
	Work *sync.WaitGroup
	// Unlink removes a connection from the gateway's table. It may be called more than once.
	Unlink func(f *Flow)
	// Die ends the process after too many panics.
	Die func()

	seen   negotiate.Seen // PROPOSALs accepted so far, against replay
	panics panics
}

// Steering is what connections need from the datapath below the gateway.
type Steering interface {
	host.Entries
	ProveAgain()
	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error
}

// Datagrams is the interface between connections and the engine that carries datagrams.
type Datagrams interface {
	// Port returns the port on which this gateway's engine is reachable, or 0 if there is
	// none.
	Port() uint16
	// News passes on what the peer of a connection said about its own engine.
	News(t ebpf.Tuple, port uint16, gateway [16]byte)
}

// Opening is what is known of a connection from its first packet on.
type Opening struct {
	ID    uint64
	Side  report.Side
	Tuple host.Tuple
	ISN   uint32        // of the connection's SYN: the application's (client) or the peer's (server)
	Shard *loop.Shard   // serves the connection for its whole life
	Trial *config.Trial // the trial it belongs to, even after the trial has ended; nil: none
}

// New returns a connection that has begun. Adopt or Serve continues it.
func (e *Env) New(o Opening) *Flow {
	f := &Flow{Opening: o, env: e, start: time.Now(), gone: make(chan struct{}), core: life.New(o.Side)}
	f.noted()
	if o.Side == report.SideServer {
		f.Share.Begin(e.Peers, f.Peer(), f.start)
	}
	return f
}

// Release lets a client's connection fall back: its application's SYN passes, and is sent
// again without the option.
func (e *Env) Release(t host.Tuple, isn uint32, syn []byte) {
	err := e.Steering.Transition(ebpf.Tuple(t), isn, ebpf.StateReleased, ebpf.StateNegotiating, ebpf.StateCompleting)
	if err != nil {
		return // the application gave up or started over, or its kernel continues by itself
	}
	if err := e.Steering.InjectApp(syn); err != nil {
		e.Log.Debug("bare SYN; the kernel's own will do", "local", t.Local, "remote", t.Remote, "error", err)
	}
}

// returnSYN passes a peer's SYN to the kernel as if it had just arrived.
func (e *Env) returnSYN(t host.Tuple, isn uint32, raw []byte) {
	et := ebpf.Tuple(t)
	if err := e.Steering.Transition(et, isn, ebpf.StateReturned, ebpf.StateWire, ebpf.StateServing, ebpf.StateRaw, ebpf.StateDead); err != nil {
		return // replaced or gone: the client's retransmission goes native
	}
	if err := e.Steering.InjectApp(raw); err != nil {
		_ = e.Steering.Delete(et, isn)
	}
}
