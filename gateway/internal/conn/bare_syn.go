package conn

import (
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// beganAnew ends the connection because its client is starting a new one on the tuple while
// the entry still belongs to this one. The new connection is native: give, which passes its
// SYN to the kernel, is called as soon as the app leg of the old one has been reset.
func (f *Flow) beganAnew(give func()) {
	f.post(func() {
		f.replaced()
		f.whenGone(give)
	})
}

// BareSYN reports a SYN without an offer on the tuple: the client fell back to native TCP
// (docs/ARCHITECTURE.md "SYNs on a known tuple"). give passes the SYN to the kernel.
func (f *Flow) BareSYN(give func()) { f.post(func() { f.bareSYNCame(give) }) }

func (f *Flow) bareSYNCame(give func()) {
	n := f.hs
	if n == nil && !f.core.Ended() {
		f.give = give // the handshake processes it first, or never begins
		return
	}
	if s, ok := serverOf(n); !ok || !n.fellBack(s, give) {
		f.replaced()
		f.whenGone(give)
	}
}

// fellBack tells the handshake that the client continued natively. What the client sent
// before is read first, since it says why. fellBack reports false if the handshake is over.
// It must be called on the shard.
func (n *negotiator) fellBack(s *negotiate.Server, give func()) bool {
	if n.left.Load() {
		return false
	}
	n.happened(func(now time.Time) []negotiate.Action {
		n.readWire()
		n.do(s.Released(now))
		if n.f.core.Ended() {
			n.f.whenGone(give)
		}
		return nil
	})
	return true
}
