package gateway

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// beganAnew is a client's new connection on a tuple whose entry still belongs to
// an old one, with isn. The new one is native: its SYN goes to the kernel as
// soon as the application's end of the old one has been reset.
func (g *gateway) beganAnew(t host.Tuple, isn uint32, old *flow, syn netstack.SYN) {
	raw := append([]byte(nil), syn.Raw...)
	give := func() { g.returnSYN(t, isn, raw) }
	if old == nil {
		give()
		return
	}
	old.post(func() {
		old.replaced()
		old.whenGone(give)
	})
}

// BareSYN is called by netstack for a SYN without offer on a tuple that was
// steered to us: the client fell back to native TCP
// (docs/ARCHITECTURE.md "SYNs on a known tuple").
func (g *gateway) BareSYN(syn netstack.SYN) {
	t := host.Tuple(syn.Tuple)
	defer g.containAbout(t)
	f := g.find(t)
	if f == nil {
		// Of a connection we never heard of: what proved it was lost on the way here.
		if e, err := g.steer.Flow(ebpf.Tuple(t)); err == nil {
			g.returnSYN(t, e.ISN, syn.Raw)
		}
		return
	}
	raw := append([]byte(nil), syn.Raw...)
	f.post(func() { f.bareSYNCame(func() { g.returnSYN(t, f.isn, raw) }) })
}

// bareSYNCame is BareSYN on the shard.
func (f *flow) bareSYNCame(give func()) {
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

// returnSYN gives a peer's SYN to the kernel as if it had just arrived.
func (g *gateway) returnSYN(t host.Tuple, isn uint32, raw []byte) {
	et := ebpf.Tuple(t)
	if err := g.steer.Transition(et, isn, ebpf.StateReturned, ebpf.StateWire, ebpf.StateServing, ebpf.StateDead); err != nil {
		return // replaced or gone: the client's retransmission is native
	}
	if err := g.steer.InjectApp(raw); err != nil {
		_ = g.steer.Delete(et, isn)
	}
}
