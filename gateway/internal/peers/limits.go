package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Limits bounds the connections of a gateway.
type Limits struct {
	Max   func() int // most flows, by the configuration in force
	Flows func() int // current flows
	Rate  *rate.Limiter
	Peers *Table
	Note  func() // called when there may be room again
}

// MaxFlows returns how many flows the gateway may have now.
func (l *Limits) MaxFlows() int { return FlowsWithin(l.Max()) }

// flows returns how many flows take up room. Declined ones do not.
func (l *Limits) flows() int { return l.Flows() - l.Peers.declined() }

// Lacking returns why there is no room for another connection of a peer; ReasonNone if there is.
func (l *Limits) Lacking() negotiate.Reason {
	switch {
	case l.flows() >= l.MaxFlows():
		return negotiate.ReasonFlowLimit
	case l.Peers.inHandshake() >= HandshakeLimit:
		return negotiate.ReasonRateLimit
	default:
		return negotiate.ReasonNone
	}
}

// Admit decides whether there is room for a flow that is already in the table. If there is not, shed says why, and the
// flow takes up no room from now on; declines reports whether the flow may stay until its client has been told. share
// is what it counts for if its peer has begun it, at the server's side. A client's flow does not wait: it counts until
// its end, which comes now.
func (l *Limits) Admit(side report.Side, peer netip.Addr, share *Share) (shed negotiate.Reason, declines bool) {
	if shed = l.lacks(side, peer); shed == negotiate.ReasonNone {
		return shed, true
	}
	declines = share.decline()
	l.Note()
	return shed, declines
}

// lacks returns why there is no room for a flow that is in the table.
func (l *Limits) lacks(side report.Side, peer netip.Addr) negotiate.Reason {
	if l.flows() > l.MaxFlows() {
		return negotiate.ReasonFlowLimit
	}
	if side == report.SideServer {
		now := time.Now()
		scarce := l.Rate.TokensAt(now) < float64(l.Rate.Burst()-l.Peers.perPeer())
		if r := l.Peers.Admit(peer, scarce, now); r != negotiate.ReasonNone {
			return r
		}
	}
	if !l.Rate.Allow() {
		return negotiate.ReasonRateLimit
	}
	return negotiate.ReasonNone
}

// Room tells the programs whether peers may begin connections. An offer that the programs leave to the kernel costs its
// client nothing, while one that lacks room only after its proof must be declined.
type Room struct {
	Tell    func(reason uint8) error // tells the programs
	Lacking func() negotiate.Reason  // why another connection of a peer has no room
	Log     *slog.Logger

	now atomic.Uint32 // negotiate.Reason that the programs know
	mu  sync.Mutex    // held while now changes
}

// Note must be called when flows have come or gone. The caller holds no lock.
func (r *Room) Note() {
	if uint32(r.Lacking()) == r.now.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	why := r.Lacking()
	if uint32(why) == r.now.Load() {
		return
	}
	if err := r.Tell(uint8(why)); err != nil {
		r.Log.Debug("room for connections of peers", "error", err)
		return
	}
	r.now.Store(uint32(why))
}

// RequireDescriptors returns an error if the limit on descriptors is too low to carry anything. Without this check the
// kernel's error would be about whatever happens to fail first.
func RequireDescriptors() error {
	if n := process.DescriptorLimit(); n <= process.OwnDescriptors {
		return fmt.Errorf("%w: %d descriptors; %d and one for each connection are needed (ulimit -n, LimitNOFILE of systemd)", errDescriptors, n, process.OwnDescriptors)
	}
	return nil
}

// errDescriptors means that the process may not have as many descriptors as a gateway needs.
var errDescriptors = errors.New("limit of open files too small")

// FlowsWithin returns how many flows, up to limit, this process has descriptors for. Each flow needs one for its app
// leg; finding none only after the application was connected would be an error of that connection.
func FlowsWithin(limit int) int {
	return max(0, min(limit, process.DescriptorLimit()-process.OwnDescriptors))
}
