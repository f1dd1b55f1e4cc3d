package peers

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// limit bounds the addresses that are remembered without a connection, and the strikes of all peers.
	limit = 16384
	// sweepEvery is how often addresses of which nothing is known are dropped.
	sweepEvery = time.Second
)

// Table is what the gateway itself knows of peers, by the address that a connection has proved; a gateway could change
// a name that it gives itself. What decides about new connections is in the programs' maps. It is safe for concurrent
// use. Its lock is innermost.
type Table struct {
	mu      sync.Mutex // guards everything below
	peers   map[netip.Addr]*peer
	holding int // peers with connections
	strikes int // of all peers
	swept   time.Time

	share   share
	refused map[Resource]uint64
	// Of all peers, written under mu:
	waiting  atomic.Int64 // handshakes
	declines atomic.Int64
}

// peer is what is known of one address.
type peer struct {
	holds   Holds
	limiter *rate.Limiter // nil: not limited so far
	seen    time.Time     // when it last began a connection

	strikes   map[uint16]negotiate.Strike // refusals in a row, by port
	proven    map[report.Carrier]struct{}
	rests     map[negotiate.CarrierKind]negotiate.Rest
	elsewhere time.Time // believed until then to be under another kernel
	apart     time.Time // until then its device of a link must be of our own kind

	software string      // version of its gateway; empty: unknown
	mode     report.Mode // its gateway's, as of the last handshake; empty: unknown
}

// NewTable returns an empty table with these limits.
func NewTable(l config.Limits) *Table {
	t := &Table{peers: map[netip.Addr]*peer{}, refused: map[Resource]uint64{}}
	t.Configure(l)
	return t
}

// peerLocked returns the entry of an address, adding it if necessary.
func (t *Table) peerLocked(a netip.Addr, now time.Time) *peer {
	if p := t.peers[a]; p != nil {
		return p
	}
	if now.Sub(t.swept) >= sweepEvery {
		t.swept = now
		t.expireLocked(now)
	}
	t.makeRoomLocked(now)
	p := &peer{}
	t.peers[a] = p
	return p
}

// expireLocked drops the addresses of which nothing is known.
func (t *Table) expireLocked(now time.Time) {
	for a, p := range t.peers {
		if p.idle(now) && p.unknown(now) {
			t.dropLocked(a, p)
		}
	}
}

// makeRoomLocked keeps the table within its limit: it drops what no longer has an effect and, if that does not suffice,
// an eighth of the rest.
func (t *Table) makeRoomLocked(now time.Time) {
	if len(t.peers)-t.holding < limit && t.strikes < limit {
		return
	}
	for a, p := range t.peers {
		for port, s := range p.strikes {
			if !s.Active(now) {
				t.forgiveLocked(p, port)
			}
		}
		if p.idle(now) && p.unknown(now) {
			t.dropLocked(a, p)
		}
	}
	const left = limit - limit/8
	for a, p := range t.peers {
		switch {
		case len(t.peers)-t.holding <= left && t.strikes <= left:
			return
		case p.holds == Holds{}:
			t.dropLocked(a, p)
		case t.strikes > left:
			t.forgetLocked(p)
		}
	}
}

// idle reports whether the peer holds nothing, and has begun nothing for so long that its rate is available again.
func (p *peer) idle(now time.Time) bool { return p.holds == Holds{} && now.Sub(p.seen) > sweepEvery }

// unknown reports whether nothing is remembered of the peer.
func (p *peer) unknown(now time.Time) bool {
	for kind, r := range p.rests {
		if r.Over(now) {
			delete(p.rests, kind)
		}
	}
	return len(p.strikes)+len(p.proven)+len(p.rests) == 0 && !now.Before(p.elsewhere) && !now.Before(p.apart)
}

// forgetLocked forgets what is remembered of a peer, but not what it holds.
func (t *Table) forgetLocked(p *peer) {
	t.strikes -= len(p.strikes)
	p.strikes, p.proven, p.rests, p.elsewhere, p.apart = nil, nil, nil, time.Time{}, time.Time{}
	p.software, p.mode = "", ""
}

func (t *Table) dropLocked(a netip.Addr, p *peer) {
	t.forgetLocked(p)
	delete(t.peers, a)
}
