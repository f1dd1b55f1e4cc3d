package peers

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Strike records that a peer refused and returns for how long it counts: the longer,
// the more often in a row.
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

// Contradicted forgets the strikes that a handshake which began at some time
// contradicts: it has reached the peer's gateway, by offering to this port of it (0: the
// peer has offered). It returns the ports of those that still have effect (0: of the
// whole host).
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

// Forget drops one strike.
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

// Met records that a peer's gateway takes part in a handshake, as only one does whose mode is enforce.
func (t *Table) Met(a netip.Addr, software string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, time.Now())
	p.software, p.mode = software, report.ModeEnforce
}

// Declined records what the reason of a peer's refusal says of its mode, if it does.
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

// Known is what is remembered of a peer: the carriers that it has been reached by, those
// that are left alone with it because they failed, and its gateway at the last handshake.
type Known struct {
	Proven, Failed []report.Carrier
	Software       string
	Mode           report.Mode
}

// Known returns what is known of each peer.
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

// Failed takes note that a connection has left a carrier because that failed.
func (t *Table) Failed(a netip.Addr, kind negotiate.CarrierKind, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, now)
	if p.rests == nil {
		p.rests = map[negotiate.CarrierKind]negotiate.Rest{}
	}
	p.rests[kind] = p.rests[kind].Failed(now)
}

// Resting reports whether a carrier is to be left alone.
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

// Unreachable takes note that memory offered to a peer could not be reached from there,
// and for how long to believe it.
func (t *Table) Unreachable(a netip.Addr, now time.Time, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peerLocked(a, now).elsewhere = now.Add(d)
}

// Reached takes note that memory was shared with a peer: what Unreachable said is over.
func (t *Table) Reached(a netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.peers[a]; p != nil {
		p.elsewhere = time.Time{}
	}
}

// Elsewhere reports whether the peer is under another kernel.
func (t *Table) Elsewhere(a netip.Addr, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	return p != nil && now.Before(p.elsewhere)
}

// Part takes note that a link whose ends are devices of both RoCEv2 kinds has failed with a
// peer, and for how long there are to be no others.
func (t *Table) Part(a netip.Addr, now time.Time, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, now)
	if until := now.Add(d); until.After(p.apart) {
		p.apart = until
	}
}

// Apart reports whether the ends of a link with a peer have to be of one kind.
func (t *Table) Apart(a netip.Addr, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	return p != nil && now.Before(p.apart)
}

// Flush forgets refusals, which carriers rest, and which peers are under another kernel or
// kept to devices of our own kind, so that everything is tried again.
func (t *Table) Flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		t.strikes -= len(p.strikes)
		p.strikes, p.rests, p.elsewhere, p.apart = nil, nil, time.Time{}, time.Time{}
	}
}
