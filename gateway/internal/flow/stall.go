package flow

import "time"

// StallLooks is how many looks at a flow the timeout is long.
const StallLooks = 4

// StallClock decides, without any clock or I/O of its own, whether one direction
// of a flow stands still by the fault of a gateway. It is told of every look:
// whether the direction is stuck (there is something to carry, and what would have
// to take it has room), an offset that moves with every progress, and the signs
// of life of the peer so far.
//
//	        stuck
//	clear ─────────► suspected ──── held for the timeout ───► stalled
//	  ▲                 │  ▲
//	  │   not stuck     │  │ another offset: begins again
//	  └─────────────────┘──┘
//
// Time is held only between looks in which the peer was heard: in a partition
// TCP waits, and so does the flow. Between two looks no more than a quarter of the
// timeout is held, so that a process that was stopped does not take its absence
// for the peer's silence. The zero value is clear.
type StallClock struct {
	suspected    bool
	moved, heard uint64
	seen         time.Time // of the last look
	held         time.Duration
}

// Look returns whether the direction is stalled.
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
	return k.held >= timeout/StallLooks*StallLooks // looks are no more exact than that
}

// StallWatch is both directions of a flow. It exists only while one is suspected.
type StallWatch struct{ Tx, Rx StallClock }
