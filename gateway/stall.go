package gateway

import "time"

// stallLooks is how many looks at a flow the timeout is long.
const stallLooks = 4

// stallClock decides, without any clock or I/O of its own, whether one direction
// of a flow stands still by the fault of a gateway. It is told of every look:
// whether the direction is stuck (there is something to carry, and who would have
// to take it has room), an offset that moves with every progress, and the signs
// of life of the peer so far.
//
//	        stuck
//	clear ─────────► suspected ──── held for the timeout ───► stalled
//	  ▲                 │  ▲
//	  │   not stuck     │  │ another offset: begins anew
//	  └─────────────────┘──┘
//
// Time is held only between looks in which the peer was heard: in a partition
// TCP waits, and so does the flow. Between two looks no more than a quarter of the
// timeout is held, so that a process that was stopped does not take its absence
// for somebody's silence. The zero value is clear.
type stallClock struct {
	suspected    bool
	moved, heard uint64
	seen         time.Time // of the last look
	held         time.Duration
}

// look returns whether the direction is stalled.
func (k *stallClock) look(stuck bool, moved, heard uint64, now time.Time, timeout time.Duration) bool {
	switch {
	case !stuck:
		*k = stallClock{}
		return false
	case !k.suspected || moved != k.moved:
		*k = stallClock{suspected: true, moved: moved, heard: heard, seen: now}
		return false
	}
	if heard != k.heard {
		k.held += min(now.Sub(k.seen), timeout/stallLooks)
	}
	k.heard, k.seen = heard, now
	return k.held >= timeout/stallLooks*stallLooks // looks are no more exact than that
}

// stallWatch is both directions of a flow. It exists only while one is suspected.
type stallWatch struct{ tx, rx stallClock }
