package negotiate

import "time"

// Scope is what a remembered reason applies to.
type Scope uint8

// The scopes of the peer cache.
const (
	ScopeNone    Scope = iota // not remembered
	ScopePeer                 // the whole peer address (port 0)
	ScopeService              // the peer's address and port
)

// CachePolicy says which outcomes of handshakes are remembered about a peer, how wide, and for how long. It is pure: the
// tables are elsewhere. What the path does to SYNs with the option the programs see and remember: no peer can tell. A zero
// field means its default.
type CachePolicy struct {
	// NegativeTTL is how long a lasting refusal is remembered; default 10 minutes. Passing troubles start at a twentieth
	// of it and double up to it.
	NegativeTTL time.Duration
}

// Defaults and bounds of CachePolicy.
const (
	DefaultNegativeTTL = 10 * time.Minute

	// passingShare is the part of NegativeTTL with which passing troubles start, lateShare that of an answer or a
	// proof that did not come in time: processors are late oftener than paths are closed.
	passingShare = 20
	lateShare    = 120
)

// Strike is what is kept about one key of the cache.
type Strike struct {
	Reason Reason
	// Count is how many times in a row, at least 1.
	Count int
	// Until is when the entry stops having effect. It is kept beyond that for the back-off.
	Until time.Time
	// TTL led to Until.
	TTL time.Duration
}

// ScopeOf returns what a reason is remembered for. carrier_unreachable is about one carrier to the whole peer: the owner
// keeps it per carrier, and offers nothing to the peer when no carrier is left.
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

// TTL returns how long a reason is remembered the count-th time in a row; 0: not at all.
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

// Next returns the entry after r happened at now. A key that has been good for as long as it had been left alone starts
// again. What happens while it is left alone began before that, and adds nothing.
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

// Remembers reports whether a verdict goes into the cache of its host. A client remembers why connections it offered
// fell back; a server remembers clients that do not get its accept. Only a verdict that rests on the peer counts: what it
// decided or sent, or its silence. The owner sees to it that Verdict.Waited was not its own delay.
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

// restsOnPeer reports whether a decision of this host rests on what the peer did, or did not do.
func (v Verdict) restsOnPeer() bool { return v.Shown || v.Waited > 0 }

type cacheClass uint8

const (
	classNone    cacheClass = iota // says nothing about the next connection
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
			return classLasting // a newer peer refuses for a reason of its own
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
