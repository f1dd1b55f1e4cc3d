package testnet

import (
	"math/rand/v2"
	"time"
)

// single is the part of the hop that handles single packets and keeps state about connections.
type single struct {
	luck *rand.Rand
	mtu  int // of the links

	firewall  connections
	proxies   proxies
	sequences sequences
	join      resegmenter
	heldSince time.Time // since when join holds something
	buckets   map[[6]byte]*bucket
}

// joinPatience is how long a segment is held for its successor.
const joinPatience = time.Millisecond

// pass applies everything in its sender's box to a frame with a complete checksum. It returns the frames to send now,
// in order, including answers to the sender.
func (s *single) pass(b Box, frame []byte, did *BoxStats) [][]byte {
	switch s.firewall.pass(b.Firewall, frame, time.Now()) {
	case dropsIt:
		did.Expired++
		return nil
	case resetsIt:
		did.Expired++
		v, _ := viewFrame(frame)
		return [][]byte{v.reset()}
	case passes:
	}
	goesOn, others, changed := s.proxies.pass(b.Proxy, frame, s.luck)
	if changed {
		did.Proxied++
	}
	if !goesOn {
		return others
	}
	if s.sequences.pass(frame, b.Sequences, s.luck) {
		did.Shifted++
	}
	if b.Options.any() && b.Options.apply(frame) {
		did.Options++
	}
	var out [][]byte
	for _, f := range s.resegment(b, frame, did) {
		if f = s.last(b, f, did); f != nil {
			out = append(out, f)
		}
	}
	return out
}

func (s *single) resegment(b Box, frame []byte, did *BoxStats) [][]byte {
	frames := [][]byte{frame}
	if b.Split {
		frames = cut(frame, s.luck)
		did.Cut += uint64(len(frames) - 1)
	}
	if !b.Join {
		return frames
	}
	if len(s.join.held) == 0 {
		s.heldSince = time.Now()
	}
	var out [][]byte
	for _, f := range frames {
		now, joined := s.join.pass(f, s.mtu)
		if joined {
			did.Joined++
		}
		out = append(out, now...)
	}
	return out
}

// last handles a packet on its way out. It returns nil if the packet is dropped.
func (s *single) last(b Box, frame []byte, did *BoxStats) []byte {
	if answer, dropped := b.PathMTU.drops(frame, addr4(routerNumber), addr6(routerNumber)); dropped {
		did.TooBig++
		return answer
	}
	if b.Corrupt.apply(frame, s.luck) {
		did.Corrupted++
	}
	return frame
}

// due returns what has been held long enough.
func (s *single) due(now time.Time) [][]byte {
	if len(s.join.held) == 0 || now.Sub(s.heldSince) < joinPatience {
		return nil
	}
	return s.join.flush()
}

// wait returns how long until something is due.
func (s *single) wait() time.Duration {
	if len(s.join.held) == 0 {
		return time.Hour
	}
	return max(joinPatience-time.Since(s.heldSince), 0)
}

func (s *single) bucket(sender [6]byte) *bucket {
	if s.buckets == nil {
		s.buckets = map[[6]byte]*bucket{}
	}
	if s.buckets[sender] == nil {
		s.buckets[sender] = &bucket{}
	}
	return s.buckets[sender]
}

// bucket is a token bucket for a rate, with bursts of a tenth of a second.
type bucket struct {
	tokens float64
	last   time.Time
}

func (b *bucket) take(rate int, now time.Time) bool {
	b.tokens = min(b.tokens+now.Sub(b.last).Seconds()*float64(rate), float64(rate)/10+1)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
