package minisock

import "time"

// Due is what has come due.
type Due uint8

const (
	// Nothing has.
	Nothing Due = iota
	// Repeat: what is not acknowledged is to be sent again: Next returns it once more.
	Repeat
	// Probe: the peer is to be asked for a sign of life by the segment that Sock.Probe returns.
	Probe
	// Silent: the peer has answered no probe: the connection has timed out.
	Silent
	// TooLate: what was repeated is still not acknowledged; it takes a whole endpoint.
	TooLate
)

// String returns the name of d.
func (d Due) String() string {
	return [...]string{"nothing", "repeat", "probe", "silent", "too late"}[d]
}

// SetKeepalive asks the peer for a sign of life when none has come for idle, from now on, and
// then every interval; when it has not answered count times, it is Silent. idle 0 turns it off.
func (s *Sock) SetKeepalive(now, idle, interval time.Duration, count int) {
	s.alive = keepalive{idle: max(idle, 0), interval: interval, count: count, since: now}
}

// Keepalive returns what SetKeepalive was told.
func (s *Sock) Keepalive() (idle, interval time.Duration, count int) {
	return s.alive.idle, s.alive.interval, s.alive.count
}

// waits reports whether bytes that were sent wait for their acknowledgement.
func (s *Sock) waits() bool { return s.nxt != s.una }

func (s *Sock) repeatAt() time.Duration { return s.sentAt + s.timeout<<s.repeats }

func (s *Sock) probeAt() time.Duration {
	return s.alive.since + s.alive.idle + time.Duration(s.alive.asked)*s.alive.interval
}

// Deadline is when Expire is to be called; false: not before something else happens. While
// bytes wait for their acknowledgement, their repetitions ask for a sign of life.
func (s *Sock) Deadline() (at time.Duration, ok bool) {
	switch {
	case s.waits():
		return s.repeatAt(), true
	case s.alive.idle > 0:
		return s.probeAt(), true
	}
	return 0, false
}

// Expire returns what has come due at now.
func (s *Sock) Expire(now time.Duration) Due {
	at, ok := s.Deadline()
	switch {
	case !ok || at > now:
		return Nothing
	case s.waits() && s.repeats == repeatsMost:
		return TooLate
	case s.waits():
		s.repeats++
		s.nxt, s.sentAt = s.una, now
		return Repeat
	case s.alive.asked >= s.alive.count:
		return Silent
	}
	// A process that slept asks anew from now on, not all that it missed at once.
	s.alive.since = now - s.alive.idle - time.Duration(s.alive.asked)*s.alive.interval
	s.alive.asked++
	return Probe
}

// Probe returns a segment that a peer has to answer (RFC 9293 3.8.4).
func (s *Sock) Probe(now time.Duration) Segment {
	seg := s.Ack(now)
	seg.Seq = s.una - 1
	return seg
}
