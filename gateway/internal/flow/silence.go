package flow

import "time"

const (
	// SilenceTurn is how often a flow is examined while its application's bytes are on their way.
	SilenceTurn = 250 * time.Millisecond
	// silenceAsk bounds how long bytes are on their way before the peer is asked for a sign of life.
	silenceAsk = 5 * time.Second
	// silenceGrace is added to a timeout, so that the application's own kernel, if it is probing, acts first: it knows
	// better why.
	silenceGrace = time.Second
	// flightAsk is the time after which a peer that did not answer is asked again; it doubles up to flightAskMost.
	flightAsk     = 2 * time.Second
	flightAskMost = time.Minute
	// retransmissionTime is how long a kernel retransmits by default (tcp_retries2 = 15).
	retransmissionTime = 924600 * time.Millisecond
)

// Patience says how long a [SilenceClock] waits for a sign of the peer, and when it asks for one.
type Patience struct {
	limit       time.Duration
	ask         time.Duration // time to the first question
	atRest      bool          // ask at once when nothing more is sent
	again, most time.Duration // time to the next question; it doubles after each, up to most
}

// TimeoutPatience is the patience of a kernel that gives up bytes after timeout.
func TimeoutPatience(timeout time.Duration) Patience {
	again := min(timeout/3, time.Second)
	return Patience{limit: timeout + silenceGrace, ask: min(timeout/3, silenceAsk), again: again, most: again}
}

// FlightPatience is the patience of a keepalive that does not probe while bytes are on their way. The kernel would give
// these up after timeout, 0 meaning its default. Natively they would be acknowledged soon, so the peer is asked early.
func FlightPatience(timeout time.Duration) Patience {
	if timeout == 0 {
		timeout = retransmissionTime
	}
	return Patience{limit: timeout, ask: silenceAsk, atRest: true, again: flightAsk, most: flightAskMost}
}

// SilenceClock decides, without I/O, whether bytes of an application are on their way, and whether they have been for
// too long without any sign of the peer.
//
//	         bytes sent                   asked in vain
//	quiet ──────────────► owed ── ask ──────────────────► over
//	  ▲  bytes or segments │   again and again              │
//	  └──── of the peer ───┴────────────────────────────────┘
//
// If one look finds both sent bytes and signs of the peer, the bytes may have come last, so they count as on their way.
// At most two turns count between two looks, so that a process that was stopped does not mistake its own absence for
// the peer's silence. The zero value treats what its first look finds as acknowledged.
type SilenceClock struct {
	phase             silencePhase
	sent, got, heard  uint64
	seen              time.Time // the last look
	silent, untilAsks time.Duration
	asked             time.Duration // interval from the last question to the next; 0: none was asked
}

type silencePhase uint8

const (
	silenceUnknown silencePhase = iota // no look yet
	silenceQuiet
	silenceOwed
	silenceOver
)

// Begin makes everything sent after sent count as on its way, even if it was sent before the call.
func (k *SilenceClock) Begin(sent, got, heard uint64, now time.Time) {
	*k = SilenceClock{phase: silenceQuiet, sent: sent, got: got, heard: heard, seen: now}
}

// Begun reports whether the clock has looked.
func (k *SilenceClock) Begun() bool { return k.phase != silenceUnknown }

// Idle reports whether nothing is on its way, and nothing was sent since the last look. Then no look is needed: the
// last one still serves.
func (k *SilenceClock) Idle(sent uint64) bool { return k.phase == silenceQuiet && sent == k.sent }

// Owed reports whether bytes are on their way, and have not been for too long. It considers what has changed since the
// last look, and changes nothing.
func (k *SilenceClock) Owed(sent, got, heard uint64) bool {
	if k.phase == silenceUnknown {
		return false
	}
	news := got != k.got || heard != k.heard
	return sent != k.sent && (news || k.phase != silenceOver) || k.phase == silenceOwed && !news
}

// Owe is a look that counts bytes as on their way even if nothing was sent and the peer was heard: the bytes wait where
// no look finds them. The caller asks the peer.
func (k *SilenceClock) Owe(sent, got, heard uint64, now time.Time, p Patience) {
	k.Look(sent, got, heard, now, p)
	if k.phase == silenceQuiet {
		k.phase = silenceOwed
		k.asked, k.untilAsks = p.again, p.again
	}
}

// Look is told how many bytes were sent and received, and how many segments were heard, in total. It returns whether to
// ask the peer for a sign of life, and whether the peer has been silent for too long.
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

// StallLooks is the number of looks at a flow within the timeout.
const StallLooks = 4

// StallClock decides, without a clock or I/O, whether one direction of a flow stands still by the fault of a gateway.
// Each look tells it whether the direction is stuck (there is something to carry, and what would have to take it has
// room), an offset that changes with any progress, and a count of the peer's signs of life.
//
//	        stuck
//	clear ─────────► suspected ──── held for the timeout ───► stalled
//	  ▲                 │  ▲
//	  │   not stuck     │  │ another offset: begins again
//	  └─────────────────┘──┘
//
// Time counts only between looks in which the peer was heard: in a partition TCP waits, and so does the flow. At most a
// quarter of the timeout counts between two looks, so that a process that was stopped does not mistake its own absence
// for the peer's silence. The zero value is clear.
type StallClock struct {
	suspected    bool
	moved, heard uint64
	seen         time.Time // the last look
	held         time.Duration
}

// Look reports whether the direction is stalled.
func (k *StallClock) Look(stuck bool, moved, heard uint64, now time.Time, timeout time.Duration) bool {
	switch {
	case !stuck:
		*k = StallClock{}
		return false
	case !k.suspected || moved != k.moved:
		*k = StallClock{suspected: true, moved: moved, heard: heard, seen: now}
		return false
	}
	if heard != k.heard {
		k.held += min(now.Sub(k.seen), timeout/StallLooks)
	}
	k.heard, k.seen = heard, now
	return k.held >= timeout/StallLooks*StallLooks // rounded as the sum of the looks is
}

// StallWatch watches both directions of a flow. It exists only while one is suspected.
type StallWatch struct{ Tx, Rx StallClock }
