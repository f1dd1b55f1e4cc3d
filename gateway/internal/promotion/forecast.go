package promotion

import (
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// forecastSize bounds the ends in each of the two generations.
const forecastSize = 8192

// forecast counts the connections that would be promoted: those both of whose ends have asked. Ends ask again and
// again, but a connection counts once, unless it has been forgotten: ends are kept for at most two generations.
type forecast struct {
	mu       sync.Mutex // guards everything below
	now, old map[endName]bool
	pairs    uint64
}

// endName identifies an end by its sequence numbers, or else by its addresses.
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

// note records that an end would be promoted. It returns true if its other end would be, too, and the connection is
// counted now.
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
