package flow

import "time"

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
