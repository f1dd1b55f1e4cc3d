package promotion

import (
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// forecastSize bounds the ends that are kept of each of two generations.
const forecastSize = 8192

// forecast counts the connections that would be promoted: those of which both ends have asked. Ends ask again and again,
// and a connection counts once. Ends are kept for two generations of forecastSize at most; what was forgotten may count
// again.
type forecast struct {
	mu       sync.Mutex // guards everything below
	now, old map[endName]bool
	pairs    uint64
}

// endName names an end, by its sequence numbers or else by its addresses.
type endName struct {
	sequences     broker.Sequences
	netns         uint64
	local, remote netip.AddrPort
}

func nameOf(s broker.Socket) endName {
	if s.Named {
		return endName{sequences: s.Sequences}
	}
	return endName{netns: s.Netns, local: s.Local, remote: s.Remote}
}

func (n endName) mirror() endName {
	return endName{broker.Sequences{Mine: n.sequences.Peer, Peer: n.sequences.Mine}, n.netns, n.remote, n.local}
}

// note takes in that an end would be promoted; true: so would the other end, and the connection counts.
func (f *forecast) note(s broker.Socket) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := nameOf(s)
	if f.now[n] || f.old[n] {
		return false
	}
	if f.now == nil || len(f.now) >= forecastSize {
		f.old, f.now = f.now, map[endName]bool{}
	}
	f.now[n] = true
	if m := n.mirror(); !f.now[m] && !f.old[m] {
		return false
	}
	f.pairs++
	return true
}

func (f *forecast) count() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pairs
}
