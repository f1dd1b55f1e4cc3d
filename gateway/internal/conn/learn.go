package conn

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/auto"
)

// Learn learns from a connection that goes on.
func (f *Flow) Learn(now time.Time) {
	if f.Carried() {
		f.learn(false, now)
	}
}

// learn learns from what the flow did; ended says that it does no more. A flow that
// is not carried, or not yet, tells nothing.
func (f *Flow) learn(ended bool, now time.Time) {
	if f.env.Auto == nil || f.seen == nil {
		return
	}
	if carrier := f.view().carrier; carrier != config.CarrierNone {
		f.env.Auto.Look(autoConn{f}, carrier, ended, now)
	}
}

// autoConn is a flow as the learner sees it.
type autoConn struct{ f *Flow }

// Service implements auto.Conn.
func (c autoConn) Service() netip.AddrPort { return c.f.Tuple.Remote }

// Start implements auto.Conn.
func (c autoConn) Start() time.Time { return c.f.start }

// Moved implements auto.Conn.
func (c autoConn) Moved() (bytes, moves uint64) {
	return c.f.tx.Load() + c.f.rx.Load(), c.f.reads.Load() + c.f.writes.Load()
}

// Seen implements auto.Conn.
func (c autoConn) Seen() *auto.Seen { return c.f.seen }
