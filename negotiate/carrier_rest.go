package negotiate

import "time"

// Rest decides for how long a carrier that keeps failing is not used. The proof is only one packet: a carrier can pass
// it every time and still be unable to carry. A Rest covers one carrier to one peer. It is a pure value; the zero value
// has no failures.
//
//	works ── restAfter failures within restWindow ──► rests ── its pause ──► works, and on trial
//	  ▲                                                 ▲                        │
//	  └── good for as long as the pause ────────────────┼────────────────────────┤
//	                                                    └── fails: pause × 2 ────┘
type Rest struct {
	failures int       // in the current window
	first    time.Time // the first of them
	last     time.Time
	pause    time.Duration // the last pause; 0 if there was none
	until    time.Time     // the end of that pause
}

const (
	// restTogether is the time within which failures count as one. A device that fails takes all its connections with
	// it, and each of them notices only when it next has something to send.
	restTogether = 2 * time.Second
	restWindow   = time.Minute
	restAfter    = 3
	// restPause is the first pause; each further one is twice as long, up to restMost.
	restPause = 10 * time.Second
	restMost  = 10 * time.Minute
)

// Failed returns the state after a connection has left the carrier at now because the carrier failed.
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

// Resting reports whether the carrier must not be used at now.
func (r Rest) Resting(now time.Time) bool { return now.Before(r.until) }

// Over reports whether r can be forgotten at now.
func (r Rest) Over(now time.Time) bool {
	return now.Sub(r.first) > restWindow && now.Sub(r.until) >= r.pause
}
