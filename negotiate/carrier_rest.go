package negotiate

import "time"

// Rest decides how long a carrier that works and then fails is left alone: a proof is one packet, and a carrier can pass
// it again and again and yet not carry. It is about one carrier with one peer, pure, and the zero value has failed never.
//
//	works ── restAfter failures within restWindow ──► rests ── its pause ──► works, and on trial
//	  ▲                                                 ▲                        │
//	  └── good for as long as the pause ────────────────┼────────────────────────┤
//	                                                    └── fails: pause × 2 ────┘
type Rest struct {
	failures int       // counted in the present row
	first    time.Time // of them
	last     time.Time
	pause    time.Duration // the last one; 0: never
	until    time.Time     // its end
}

const (
	// restTogether: failures of so long a time are one. A device that fails takes all of its connections with it, and
	// each notices when it next has something to send.
	restTogether = 2 * time.Second
	restWindow   = time.Minute
	restAfter    = 3
	// restPause is the first pause; it doubles up to restMost.
	restPause = 10 * time.Second
	restMost  = 10 * time.Minute
)

// Failed returns what is known after a connection had to leave the carrier at now.
func (r Rest) Failed(now time.Time) Rest {
	if r.failures > 0 && now.Sub(r.last) < restTogether || r.Resting(now) {
		return r
	}
	if r.pause > 0 && now.Sub(r.until) < r.pause { // on trial
		return r.rest(now, min(2*r.pause, restMost))
	}
	if r.failures == 0 || now.Sub(r.first) > restWindow {
		r = Rest{first: now}
	}
	r.failures++
	r.last = now
	if r.failures == restAfter {
		return r.rest(now, restPause)
	}
	return r
}

func (r Rest) rest(now time.Time, pause time.Duration) Rest {
	return Rest{pause: pause, until: now.Add(pause)}
}

// Resting reports whether the carrier is to be left alone at now.
func (r Rest) Resting(now time.Time) bool { return now.Before(r.until) }

// Over reports whether nothing is left to remember at now.
func (r Rest) Over(now time.Time) bool {
	return now.Sub(r.first) > restWindow && now.Sub(r.until) >= r.pause
}
