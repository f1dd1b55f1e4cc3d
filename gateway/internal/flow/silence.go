package flow

import "time"

const (
	// SilenceTurn is how often flows are looked at whose application has a
	// TCP_USER_TIMEOUT, or a host that gives up early (tcp_retries2).
	SilenceTurn = 250 * time.Millisecond
	// silenceAsk bounds how long bytes are on their way before the peer is asked.
	silenceAsk = 5 * time.Second
	// silenceGrace is left to the application's own kernel, which knows better why,
	// where it has probes under way.
	silenceGrace = time.Second
)

// SilenceClock decides, without I/O of its own, whether bytes of an application have
// been on their way for its TCP_USER_TIMEOUT without any sign of the peer.
//
//	         bytes sent                     asked in vain
//	quiet ───────────────► owed ── ask ───────────────────► silent
//	  ▲   bytes or segments  │   again and again
//	  └──── of the peer ─────┘
//
// Of a look that finds both, what was sent may have come last. Between two looks no
// more than two turns are counted, so that a process that was stopped does not take
// its absence for the peer's silence.
type SilenceClock struct {
	begun             bool
	sent, got, heard  uint64
	owed              bool
	seen              time.Time // of the last look
	silent, untilAsks time.Duration
}

// Idle tells that nothing was sent since bytes were on their way: no look is needed, and
// an earlier one does as well.
func (k *SilenceClock) Idle(sent uint64) bool { return k.begun && !k.owed && sent == k.sent }

// Look is told how many bytes went and came and how many segments were heard. The
// peer is to be asked, or over says that it has been silent for too long.
func (k *SilenceClock) Look(sent, got, heard uint64, now time.Time, timeout time.Duration) (ask, over bool) {
	fresh, news := sent != k.sent, got != k.got || heard != k.heard
	passed := min(now.Sub(k.seen), 2*SilenceTurn)
	first := !k.begun
	k.begun, k.sent, k.got, k.heard, k.seen = true, sent, got, heard, now
	if first || news || !k.owed {
		k.owed, k.silent = fresh && !first, 0
		k.untilAsks = min(timeout/3, silenceAsk)
		return false, false
	}
	k.silent += passed
	k.untilAsks -= passed
	if k.untilAsks <= 0 {
		ask, k.untilAsks = true, min(timeout/3, time.Second)
	}
	return ask, k.silent >= timeout+silenceGrace
}
