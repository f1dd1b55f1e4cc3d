package peers

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Strike records that a peer refused, and returns the strike. It lasts longer the more often in a row the peer has
// refused.
func (t *Table) Strike(a netip.Addr, port uint16, r negotiate.Reason, p negotiate.CachePolicy, now time.Time) negotiate.Strike {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.makeRoomLocked(now)
	known := t.peerLocked(a, now)
	prev, again := known.strikes[port]
	if !again {
		t.strikes++
	}
	if known.strikes == nil {
		known.strikes = map[uint16]negotiate.Strike{}
	}
	s := p.Next(prev, r, now)
	known.strikes[port] = s
	return s
}

// forgiveLocked forgets one strike.
func (t *Table) forgiveLocked(p *peer, port uint16) {
	if _, ok := p.strikes[port]; ok {
		delete(p.strikes, port)
		t.strikes--
	}
}

// Contradicted forgets the strikes that a handshake contradicts which began at a given time and has reached the peer's
// gateway, by an offer to this port of the peer (0: by an offer of the peer). It returns the ports of the strikes that
// were still in effect (0: of the whole host).
func (t *Table) Contradicted(a netip.Addr, port uint16, began time.Time, policy negotiate.CachePolicy) (ports []uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	if p == nil {
		return nil
	}
	for struck, s := range p.strikes {
		if began.Before(s.Until.Add(-s.TTL)) || !policy.Undone(s.Reason, struck == port && port != 0) {
			continue
		}
		if s.Active(began) {
			ports = append(ports, struck)
		}
		t.forgiveLocked(p, struck)
	}
	return ports
}

// Forget forgets one strike.
func (t *Table) Forget(a netip.Addr, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.peers[a]; p != nil {
		t.forgiveLocked(p, port)
	}
}

// Proven records that a carrier works with a peer.
func (t *Table) Proven(a netip.Addr, c report.Carrier) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, time.Now())
	if p.proven == nil {
		p.proven = map[report.Carrier]struct{}{}
	}
	p.proven[c] = struct{}{}
}

// Met records that a peer's gateway takes part in a handshake, which it does only in mode enforce.
func (t *Table) Met(a netip.Addr, software string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, time.Now())
	p.software, p.mode = software, report.ModeEnforce
}

// Declined records what mode a peer is in, if the reason of its refusal tells.
func (t *Table) Declined(a netip.Addr, r negotiate.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	switch {
	case p == nil:
	case r == negotiate.ReasonOff:
		p.mode = report.ModeOff
	case r == negotiate.ReasonMode:
		p.mode = report.ModeObserve
	}
}

// Known is what is remembered of a peer: the carriers that have worked with it, those that rest because they failed,
// and its gateway as of the last handshake.
type Known struct {
	Proven, Failed []report.Carrier
	Software       string
	Mode           report.Mode
}

// Known returns what is remembered of each peer.
func (t *Table) Known(now time.Time) map[netip.Addr]Known {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[netip.Addr]Known{}
	for a, p := range t.peers {
		known := Known{Software: p.software, Mode: p.mode}
		for _, c := range report.Carriers() {
			if _, ok := p.proven[c]; ok {
				known.Proven = append(known.Proven, c)
			}
		}
		for kind, rest := range p.rests {
			if rest.Resting(now) {
				known.Failed = append(known.Failed, report.Carrier(kind.String()))
			}
		}
		if len(known.Proven)+len(known.Failed) > 0 || known.Mode != "" {
			slices.Sort(known.Failed)
			out[a] = known
		}
	}
	return out
}

// Failed records that a connection has left a carrier because the carrier failed.
func (t *Table) Failed(a netip.Addr, kind negotiate.CarrierKind, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, now)
	if p.rests == nil {
		p.rests = map[negotiate.CarrierKind]negotiate.Rest{}
	}
	p.rests[kind] = p.rests[kind].Failed(now)
}

// Resting reports whether a carrier must not be tried with a peer.
func (t *Table) Resting(a netip.Addr, kind negotiate.CarrierKind, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	if p == nil {
		return false
	}
	rest, ok := p.rests[kind]
	return ok && rest.Resting(now)
}

// Unreachable records, for d, that a peer could not reach memory offered to it.
func (t *Table) Unreachable(a netip.Addr, now time.Time, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peerLocked(a, now).elsewhere = now.Add(d)
}

// Reached records that memory was shared with a peer, which revokes Unreachable.
func (t *Table) Reached(a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.peers[a]; p != nil {
		p.elsewhere = time.Time{}
	}
}

// Elsewhere reports whether the peer is believed to be under another kernel.
func (t *Table) Elsewhere(a netip.Addr, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	return p != nil && now.Before(p.elsewhere)
}

// Part records, for d, that links between devices of different RoCEv2 kinds fail with a peer, and are not to be made.
func (t *Table) Part(a netip.Addr, now time.Time, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, now)
	if until := now.Add(d); until.After(p.apart) {
		p.apart = until
	}
}

// Apart reports whether both ends of a link with a peer must be of one kind.
func (t *Table) Apart(a netip.Addr, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	return p != nil && now.Before(p.apart)
}

// Flush forgets refusals, resting carriers, and what Unreachable and Part have recorded, so that everything is tried
// again.
func (t *Table) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		t.strikes -= len(p.strikes)
		p.strikes, p.rests, p.elsewhere, p.apart = nil, nil, time.Time{}, time.Time{}
	}
}

// Refusals keeps the programs informed of why no connection may begin.
type Refusals struct {
	Tell func(reason uint8) error // tells the programs

	mu  sync.Mutex // guards now; also held while the programs are told
	now Refusal
}

// Refusal is what keeps connections from beginning.
type Refusal struct {
	Drained bool // the gateway is ending
	Legless bool // there are no sockets for app legs
}

func (r Refusal) reason() negotiate.Reason {
	switch {
	case r.Drained:
		return negotiate.ReasonDrained
	case r.Legless:
		return negotiate.ReasonAppLegBlocked
	default:
		return negotiate.ReasonNone
	}
}

// Change applies change to the current Refusal, and tells the programs.
func (r *Refusals) Change(change func(now *Refusal)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.now)
	return r.Tell(uint8(r.now.reason()))
}
