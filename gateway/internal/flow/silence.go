package flow

import "time"

const (
	// SilenceTurn is how often a flow is looked at while its application's bytes are on
	// their way.
	SilenceTurn = 250 * time.Millisecond
	// silenceAsk bounds how long bytes are on their way before the peer is asked.
	silenceAsk = 5 * time.Second
	// silenceGrace is left to the application's own kernel, which knows better why,
	// where it has probes under way.
	silenceGrace = time.Second
	// flightAsk is after how long a peer that was asked in vain is asked again, and
	// flightAskMost what that doubles to.
	flightAsk     = 2 * time.Second
	flightAskMost = time.Minute
	// retransmissionTime is for how long a kernel repeats bytes by default (tcp_retries2 = 15).
	retransmissionTime = 924600 * time.Millisecond
)

// Patience is for how long a [SilenceClock] waits for a sign of the peer, and when it asks
// for one.
type Patience struct {
	limit       time.Duration
	ask         time.Duration // the first question
	atRest      bool          // it comes sooner when nothing more is sent
	again, most time.Duration // the next one; each further one after twice as long, up to most
}

// TimeoutPatience is that of a kernel which gives bytes up after timeout.
func TimeoutPatience(timeout time.Duration) Patience {
	again := min(timeout/3, time.Second)
	return Patience{limit: timeout + silenceGrace, ask: min(timeout/3, silenceAsk), again: again, most: again}
}

// FlightPatience is that of a keepalive which does not probe beside bytes on their way: they
// would be given up after timeout, 0 meaning the kernel's default. As they are acknowledged
// natively, the peer is asked soon.
func FlightPatience(timeout time.Duration) Patience {
	if timeout == 0 {
		timeout = retransmissionTime
	}
	return Patience{limit: timeout, ask: silenceAsk, atRest: true, again: flightAsk, most: flightAskMost}
}

// SilenceClock decides, without I/O of its own, whether bytes of an application are on
// their way, and whether they have been for too long without any sign of the peer.
//
//	         bytes sent                   asked in vain
//	quiet ──────────────► owed ── ask ──────────────────► over
//	  ▲  bytes or segments │   again and again              │
//	  └──── of the peer ───┴────────────────────────────────┘
//
// Of a look that finds both, what was sent may have come last. Between two looks no
// more than two turns are counted, so that a process that was stopped does not take
// its absence for the peer's silence. The zero value takes what its first look finds for
// acknowledged.
type SilenceClock struct {
	phase             silencePhase
	sent, got, heard  uint64
	seen              time.Time // of the last look
	silent, untilAsks time.Duration
	asked             time.Duration // what passes between the last question and the next; 0: none was asked
}

type silencePhase uint8

const (
	silenceUnknown silencePhase = iota // no look yet
	silenceQuiet
	silenceOwed
	silenceOver
)

// Begin has everything from sent on count as on its way, whatever came before the call.
func (k *SilenceClock) Begin(sent, got, heard uint64, now time.Time) {
	*k = SilenceClock{phase: silenceQuiet, sent: sent, got: got, heard: heard, seen: now}
}

// Begun reports whether the clock has looked.
func (k *SilenceClock) Begun() bool { return k.phase != silenceUnknown }

// Idle tells that nothing was sent since bytes were on their way: no look is needed, and
// an earlier one does as well.
func (k *SilenceClock) Idle(sent uint64) bool { return k.phase == silenceQuiet && sent == k.sent }

// Owed reports whether bytes are on their way, and have not been for too long. It looks at
// what has changed since the last look, and keeps nothing.
func (k *SilenceClock) Owed(sent, got, heard uint64) bool {
	if k.phase == silenceUnknown {
		return false
	}
	news := got != k.got || heard != k.heard
	return sent != k.sent && (news || k.phase != silenceOver) || k.phase == silenceOwed && !news
}

// Owe is a look that has bytes count as on their way although nothing was sent and the peer
// may have been heard: they wait where no look finds them. The caller asks the peer.
func (k *SilenceClock) Owe(sent, got, heard uint64, now time.Time, p Patience) {
	k.Look(sent, got, heard, now, p)
	if k.phase == silenceQuiet {
		k.phase = silenceOwed
		k.asked, k.untilAsks = p.again, p.again
	}
}

// Look is told how many bytes went and came and how many segments were heard. The
// peer is to be asked, or over says that it has been silent for too long.
func (k *SilenceClock) Look(sent, got, heard uint64, now time.Time, p Patience) (ask, over bool) {
	fresh, news := sent != k.sent, got != k.got || heard != k.heard
	passed := max(0, min(now.Sub(k.seen), 2*SilenceTurn))
	before := k.phase
	k.sent, k.got, k.heard, k.seen = sent, got, heard, now
	if before <= silenceQuiet || news {
		k.phase = silenceQuiet
		if fresh && before != silenceUnknown {
			k.phase = silenceOwed
		}
		k.silent, k.asked, k.untilAsks = 0, 0, p.ask
		return false, false
	}
	k.silent += passed
	k.untilAsks -= passed
	if k.silent >= p.limit {
		k.phase = silenceOver
	}
	switch {
	case k.asked > 0 && k.untilAsks <= 0:
		ask, k.asked = true, min(2*k.asked, p.most)
	case k.asked == 0 && (k.untilAsks <= 0 || p.atRest && !fresh):
		ask, k.asked = true, p.again
	}
	if ask {
		k.untilAsks = k.asked
	}
	return ask, k.phase == silenceOver
}
