package admin

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// Gateway is all that is asked by the admin server.
type Gateway interface {
	Control
	MetricsSource
}

// Board passes what operators ask on to the gateway that serves now. [Board.Hang] comes
// before the first question.
type Board struct{ g atomic.Pointer[Gateway] }

// Hang makes a gateway the one that is asked.
func (b *Board) Hang(g Gateway) { b.g.Store(&g) }

func (b *Board) now() Gateway { return *b.g.Load() }

var (
	_ Control       = (*Board)(nil)
	_ MetricsSource = (*Board)(nil)
)

// Status implements Control.
func (b *Board) Status() Status { return b.now().Status() }

// Stats implements Control.
func (b *Board) Stats() Stats { return b.now().Stats() }

// Conns implements Control.
func (b *Board) Conns(q ConnQuery) []ConnInfo { return b.now().Conns(q) }

// Peers implements Control.
func (b *Board) Peers() []PeerInfo { return b.now().Peers() }

// Policy implements Control.
func (b *Board) Policy() PolicyReport { return b.now().Policy() }

// Feed implements Control.
func (b *Board) Feed() *Feed { return b.now().Feed() }

// OptIn implements Control.
func (b *Board) OptIn(o OptIn) (end func(), err error) { return b.now().OptIn(o) }

// Set implements Control.
func (b *Board) Set(s Setting) error { return b.now().Set(s) }

// Reload implements Control.
func (b *Board) Reload(ctx context.Context) error { return b.now().Reload(ctx) }

// Successor implements Control.
func (b *Board) Successor(ctx context.Context, always bool) (Successor, error) {
	return b.now().Successor(ctx, always)
}

// Devices implements Control.
func (b *Board) Devices() DeviceList { return b.now().Devices() }

// FlushPeers implements Control.
func (b *Board) FlushPeers() (int, error) { return b.now().FlushPeers() }

// Try implements Control.
func (b *Board) Try(t Trial) (end func(), err error) { return b.now().Try(t) }

// Demote implements Control.
func (b *Board) Demote(q DemoteQuery) (int, error) { return b.now().Demote(q) }

// SetOff implements Control.
func (b *Board) SetOff(off bool) error { return b.now().SetOff(off) }

// ResetFlows implements Control.
func (b *Board) ResetFlows() int { return b.now().ResetFlows() }

// Drain implements Control.
func (b *Board) Drain(timeout time.Duration) (<-chan struct{}, error) {
	return b.now().Drain(timeout)
}

// Draining implements Control.
func (b *Board) Draining() *DrainInfo { return b.now().Draining() }

// Neighbour implements Control.
func (b *Board) Neighbour() (ebpf.Neighbour, error) { return b.now().Neighbour() }

// Yield implements Control.
func (b *Board) Yield() error { return b.now().Yield() }

// TakeBack implements Control.
func (b *Board) TakeBack() error { return b.now().TakeBack() }

// Leave implements Control.
func (b *Board) Leave(still func() error, timeout time.Duration, main int) (off bool, err error) {
	return b.now().Leave(still, timeout, main)
}

// Totals implements MetricsSource.
func (b *Board) Totals() Snapshot { return b.now().Totals() }

// Snapshot implements MetricsSource.
func (b *Board) Snapshot() Snapshot { return b.now().Snapshot() }
