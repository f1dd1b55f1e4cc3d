package minisock

import "time"

// Due is what has become due.
type Due uint8

const (
	// Nothing is due.
	Nothing Due = iota
	// Repeat: unacknowledged bytes must be retransmitted; Next returns them once more.
	Repeat
	// Probe: the peer must be probed with the segment that Sock.Probe returns.
	Probe
	// Silent: the peer has not answered any probe, so the connection has timed out.
	Silent
	// TooLate: retransmitted bytes are still not acknowledged, which requires a full endpoint.
	TooLate
)

// String returns the name of d.
func (d Due) String() string {
	return [...]string{"nothing", "repeat", "probe", "silent", "too late"}[d]
}

// SetKeepalive makes the Sock probe the peer when it has been idle for idle, starting now, and then every interval.
// After count unanswered probes it is Silent. idle 0 turns it off.
func (s *Sock) SetKeepalive(now, idle, interval time.Duration, count int) {
	s.alive = keepalive{idle: max(idle, 0), interval: interval, count: count, since: now}
}

// Keepalive returns the arguments of SetKeepalive.
func (s *Sock) Keepalive() (idle, interval time.Duration, count int) {
	return s.alive.idle, s.alive.interval, s.alive.count
}

// waits reports whether sent bytes are unacknowledged.
func (s *Sock) waits() bool { return s.nxt != s.una }

func (s *Sock) repeatAt() time.Duration { return s.sentAt + s.timeout<<s.repeats }

func (s *Sock) probeAt() time.Duration {
	return s.alive.since + s.alive.idle + time.Duration(s.alive.asked)*s.alive.interval
}

// Deadline returns when to call Expire, or false if nothing is pending. While bytes are unacknowledged, their
// retransmissions serve as probes.
func (s *Sock) Deadline() (at time.Duration, ok bool) {
	switch {
	case s.waits():
		return s.repeatAt(), true
	case s.alive.idle > 0:
		return s.probeAt(), true
	}
	return 0, false
}

// Expire returns what has become due at now.
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
	// After a pause of the process, probe once from now on instead of making up for all missed probes.
	s.alive.since = now - s.alive.idle - time.Duration(s.alive.asked)*s.alive.interval
	s.alive.asked++
	return Probe
}

// Probe returns a segment that the peer must answer (RFC 9293 3.8.4).
func (s *Sock) Probe(now time.Duration) Segment {
	seg := s.Ack(now)
	seg.Seq = s.una - 1
	return seg
}
