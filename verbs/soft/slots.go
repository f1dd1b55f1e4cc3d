package soft

import (
	"crypto/rand"
	"encoding/binary"
)

// A queue pair's number identifies its vector, so that peers can choose the source port, and the kernel the socket. The
// rest is random, and so is the choice among the names that fit a vector: a host that was not told a number has to
// guess it.
//
//	random (20) | name of the vector (4)
//
// A name belongs to the vector that is its remainder: the kernel chooses the socket the same way (steer).
const (
	vectorBits = 4
	gsiQPN     = 1
	// vectorQPs bounds the queue pairs of a vector to half of the numbers, so that a random one is free at the second try
	// on average.
	vectorQPs = 1 << (24 - vectorBits - 1)
	// restingQPNs is how many numbers of closed queue pairs are not reused yet, so that packets for a predecessor find no
	// queue pair.
	restingQPNs = 4096
	// multicastQPN is never a queue pair's number (IBTA vol. 1, 10.5.2.1).
	multicastQPN = 1<<24 - 1
)

func vectorOf(qpn uint32, vectors int) int { return int(qpn&(1<<vectorBits-1)) % vectors }

// slotTable assigns numbers. The caller holds Device.mu.
type slotTable struct {
	names   []uint32            // by vector
	taken   map[uint32]struct{} // in use, or resting
	resting []uint32            // oldest first
	users   []int               // by vector
	used    int
	limit   int
}

func (t *slotTable) init(vectors, limit int) {
	t.names, t.users = make([]uint32, vectors), make([]int, vectors)
	t.taken, t.limit = map[uint32]struct{}{}, limit
	for v := range t.names {
		fit := (1<<vectorBits - v + vectors - 1) / vectors
		t.names[v] = uint32(v + vectors*int(random32()%uint32(fit)))
	}
}

// take returns the number of a new queue pair.
func (t *slotTable) take(vector int) (qpn uint32, ok bool) {
	if t.used >= t.limit || t.users[vector] >= vectorQPs {
		return 0, false
	}
	for {
		qpn = random32()&(multicastQPN<<vectorBits&multicastQPN) | t.names[vector]
		if _, taken := t.taken[qpn]; !taken && qpn>>vectorBits != 0 && qpn != multicastQPN {
			break
		}
	}
	t.taken[qpn] = struct{}{}
	t.used++
	t.users[vector]++
	return qpn, true
}

func (t *slotTable) put(qpn uint32) {
	t.used--
	t.users[vectorOf(qpn, len(t.users))]--
	t.resting = append(t.resting, qpn)
	if len(t.resting) > restingQPNs {
		delete(t.taken, t.resting[0])
		t.resting = t.resting[1:]
	}
}

// random32 returns a number that a peer cannot guess.
func random32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
