package gateway

import (
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// board passes what operators ask on to the gateway that serves now.
type board struct{ g atomic.Pointer[gateway] }

var (
	_ admin.Control       = (*board)(nil)
	_ admin.MetricsSource = (*board)(nil)
)

// Status implements admin.Control.
func (b *board) Status() admin.Status { return b.g.Load().Status() }

// Stats implements admin.Control.
func (b *board) Stats() admin.Stats { return b.g.Load().Stats() }

// Conns implements admin.Control.
func (b *board) Conns(q admin.ConnQuery) []admin.ConnInfo { return b.g.Load().Conns(q) }

// Peers implements admin.Control.
func (b *board) Peers() []admin.PeerInfo { return b.g.Load().Peers() }

// Services implements admin.Control.
func (b *board) Services() []admin.ServiceInfo { return b.g.Load().Services() }

// Policy implements admin.Control.
func (b *board) Policy() admin.PolicyReport { return b.g.Load().Policy() }

// SetShare implements admin.Control.
func (b *board) SetShare(s config.Share) error { return b.g.Load().SetShare(s) }

// Devices implements admin.Control.
func (b *board) Devices() admin.DeviceList { return b.g.Load().Devices() }

// FlushPeers implements admin.Control.
func (b *board) FlushPeers() (int, error) { return b.g.Load().FlushPeers() }

// Try implements admin.Control.
func (b *board) Try(t admin.Trial) (end func(), err error) { return b.g.Load().Try(t) }

// Demote implements admin.Control.
func (b *board) Demote(q admin.DemoteQuery) (int, error) { return b.g.Load().Demote(q) }

// SetOff implements admin.Control.
func (b *board) SetOff(off bool) error { return b.g.Load().SetOff(off) }

// ResetFlows implements admin.Control.
func (b *board) ResetFlows() int { return b.g.Load().ResetFlows() }

// Drain implements admin.Control.
func (b *board) Drain(timeout time.Duration) (<-chan struct{}, error) {
	return b.g.Load().Drain(timeout)
}

// Draining implements admin.Control.
func (b *board) Draining() *admin.DrainInfo { return b.g.Load().Draining() }

// Neighbour implements admin.Control.
func (b *board) Neighbour() (ebpf.Neighbour, error) { return b.g.Load().Neighbour() }

// Yield implements admin.Control.
func (b *board) Yield() error { return b.g.Load().Yield() }

// TakeBack implements admin.Control.
func (b *board) TakeBack() error { return b.g.Load().TakeBack() }

// Snapshot implements admin.MetricsSource.
func (b *board) Snapshot() admin.Snapshot { return b.g.Load().Snapshot() }
