package conn

import (
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// beganAnew ends the connection because its client begins another one on the tuple, whose
// entry still belongs to this one. The new one is native: give, which gives its SYN to the
// kernel, is called as soon as the application's end of the old one has been reset.
func (f *Flow) beganAnew(give func()) {
	f.post(func() {
		f.replaced()
		f.whenGone(give)
	})
}

// BareSYN tells of a SYN without offer on the tuple: the client fell back to native TCP
// (docs/ARCHITECTURE.md "SYNs on a known tuple"). give gives it to the kernel.
func (f *Flow) BareSYN(give func()) { f.post(func() { f.bareSYNCame(give) }) }

func (f *Flow) bareSYNCame(give func()) {
	n := f.hs
	if n == nil && !f.core.Ended() {
		f.give = give // the handshake hears of it first thing, or never begins
		return
	}
	if s, ok := serverOf(n); !ok || !n.fellBack(s, give) {
		f.replaced()
		f.whenGone(give)
	}
}

// fellBack tells the handshake that the client went on without us. What the
// client said before counts: why it did. It reports false when the handshake is over.
// The caller is on the shard.
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
