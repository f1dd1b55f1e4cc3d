package negotiate

import (
	"encoding/binary"
	"sync"
	"time"
)

// Scope is the range of connections that a remembered reason applies to.
type Scope uint8

// The scopes of the peer cache.
const (
	ScopeNone    Scope = iota // not remembered
	ScopePeer                 // the whole peer address (port 0)
	ScopeService              // the peer's address and port
)

// CachePolicy decides which handshake outcomes are remembered about a peer, for which scope, and for how long. It is a
// pure function of its arguments; others keep the tables. The eBPF programs, not this cache, observe and remember what
// the path does to SYNs with the option, because no peer can report that. A zero field means its default.
type CachePolicy struct {
	// NegativeTTL is how long a lasting refusal is remembered; default 10 minutes. A passing one is remembered for a
	// twentieth of it at first, and twice as long each time up to this.
	NegativeTTL time.Duration
}

// Defaults and bounds of CachePolicy.
const (
	DefaultNegativeTTL = 10 * time.Minute

	// NegativeTTL / passingShare is the first TTL of a passing reason, NegativeTTL / lateShare that of an answer or a
	// proof that came too late. The latter is shorter because busy processors are more common than blocked paths.
	passingShare = 20
	lateShare    = 120
)

// Strike is the entry of one key of the cache.
type Strike struct {
	Reason Reason
	// Count is how many times in a row Reason was seen, at least 1.
	Count int
	// Until is when the entry ceases to have effect. The entry is kept longer for the back-off.
	Until time.Time
	// TTL is the time to live from which Until was computed.
	TTL time.Duration
}

// ScopeOf returns the scope for which r is remembered. carrier_unreachable is about one carrier to the whole peer: the
// owner keeps it per carrier, and offers nothing to the peer when no carrier is left.
func (p CachePolicy) ScopeOf(r Reason) Scope {
	switch classOf(r) {
	case classPassing:
		if r == ReasonAcceptLost || r == ReasonCarrierUnreachable {
			return ScopePeer
		}
		return ScopeService
	case classLasting:
		return ScopeService
	case classNone:
	}
	return ScopeNone
}

// TTL returns how long r is remembered when it occurs for the count-th time in a row, or 0 if it is not remembered.
func (p CachePolicy) TTL(r Reason, count int) time.Duration {
	p = p.withDefaults()
	shift := min(max(count, 1)-1, 62)
	switch classOf(r) {
	case classPassing:
		share := time.Duration(passingShare)
		if r == ReasonHandshakeTimeout || r == ReasonCarrierUnreachable {
			share = lateShare
		}
		return doubled(max(p.NegativeTTL/share, 1), shift, p.NegativeTTL)
	case classLasting:
		return p.NegativeTTL
	case classNone:
	}
	return 0
}

// Next returns the entry after r occurred at now. The count starts again if r has not recurred until a further TTL
// after the entry expired. A recurrence while the entry is active adds nothing, because that connection began before
// the entry was made.
func (p CachePolicy) Next(prev Strike, r Reason, now time.Time) Strike {
	if prev.Reason == r && prev.Active(now) {
		return prev
	}
	count := 1
	if prev.Reason == r && now.Before(prev.Until.Add(prev.TTL)) {
		count = prev.Count + 1
	}
	ttl := p.TTL(r, count)
	return Strike{Reason: r, Count: count, Until: now.Add(ttl), TTL: ttl}
}

// Active reports whether the entry has effect at now.
func (s Strike) Active(now time.Time) bool { return s.Reason != ReasonNone && now.Before(s.Until) }

// Remembers reports whether v goes into the cache of this host. A client remembers why connections that it offered fell
// back; a server remembers clients that do not receive its accept. A verdict counts only if it rests on the peer: on
// what the peer decided or sent, or on its silence. The owner makes sure that Verdict.Waited was not caused by a delay
// of this host.
func (p CachePolicy) Remembers(v Verdict) bool {
	switch v.Outcome {
	case OutcomeReleased:
		return classOf(v.Reason) != classNone && (v.Remote || v.restsOnPeer())
	case OutcomeRaw, OutcomeAborted:
		return v.Reason == ReasonAcceptLost && v.restsOnPeer()
	case OutcomeCarried:
		return v.Reason == ReasonCarrierUnreachable && !v.Remote && v.restsOnPeer()
	case OutcomeNone, OutcomeDeclined:
	}
	return false
}

func (p CachePolicy) withDefaults() CachePolicy {
	if p.NegativeTTL <= 0 {
		p.NegativeTTL = DefaultNegativeTTL
	}
	return p
}

// restsOnPeer reports whether this host decided because of what the peer did, or failed to do.
func (v Verdict) restsOnPeer() bool { return v.Shown || v.Waited > 0 }

type cacheClass uint8

const (
	classNone    cacheClass = iota // tells nothing about the next connection
	classPassing                   // may be over soon: load, restarts, an application that is down
	classLasting                   // configuration of the peer
)

func classOf(r Reason) cacheClass {
	switch r {
	case ReasonAcceptLost, ReasonCarrierUnreachable, ReasonHandshakeTimeout, ReasonAppRefused, ReasonAppUnreachable,
		ReasonNoMemory, ReasonFlowLimit, ReasonRateLimit, ReasonDeviceFailed, ReasonWireReset, ReasonDrained, ReasonInternalError:
		return classPassing
	case ReasonVersion, ReasonNoCommonCarrier, ReasonNAT, ReasonAuthFailed, ReasonProtocolError, ReasonPolicy, ReasonNeverList,
		ReasonMode, ReasonOff, ReasonNotWorthIt:
		return classLasting
	default:
		if !r.known() && r != ReasonNone {
			return classLasting // a newer peer has refused for a reason of its own
		}
		return classNone
	}
}

// doubled returns d·2^shift, at most limit, without overflow.
func doubled(d time.Duration, shift int, limit time.Duration) time.Duration {
	for range shift {
		if d >= limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

// OfCarriers reports whether r can mean that the server is unable to use any of the offered carriers. It might then
// still be able to use a different one.
func (r Reason) OfCarriers() bool {
	switch r {
	case ReasonNoCommonCarrier, ReasonNAT, ReasonDeviceFailed, ReasonCarrierUnreachable, ReasonFlowLimit, ReasonNoMemory, ReasonDrained:
		return true
	default:
		return false
	}
}

// Undone reports whether a carried connection with a peer disproves r, which is remembered about that peer. A
// connection of the same service disproves every reason. One of another service, or in the other direction, disproves
// reasons about the peer's gateway or the path to it, but not those about an application, its rule, or resource limits.
func (p CachePolicy) Undone(r Reason, sameService bool) bool {
	if p.ScopeOf(r) == ScopeNone || sameService {
		return sameService
	}
	switch r {
	case ReasonAcceptLost, ReasonCarrierUnreachable, ReasonHandshakeTimeout, ReasonDeviceFailed, ReasonWireReset,
		ReasonDrained, ReasonInternalError, ReasonVersion, ReasonNoCommonCarrier, ReasonNAT, ReasonAuthFailed,
		ReasonProtocolError, ReasonMode, ReasonOff:
		return true
	default:
		return false
	}
}

// seenMost is how many MACs one generation of a Seen holds.
const seenMost = 32768

// Seen remembers the PROPOSALs that were believed, so that no PROPOSAL is believed twice: the sequence numbers to which
// a PROPOSAL is bound come from a clock and recur after minutes. It remembers the last 32768 to 65536. The zero value
// is ready to use. It is safe for concurrent use.
type Seen struct {
	mu         sync.Mutex // guards everything below
	young, old map[uint64]struct{}
}

// first reports whether mac is new. It compares only a quarter of the MAC: only a sender that has the key could make
// two that share it.
func (s *Seen) first(mac MAC) bool {
	k := binary.BigEndian.Uint64(mac[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.young[k]; again {
		return false
	}
	if _, again := s.old[k]; again {
		return false
	}
	if len(s.young) >= seenMost || s.young == nil {
		s.old, s.young = s.young, map[uint64]struct{}{}
	}
	s.young[k] = struct{}{}
	return true
}
