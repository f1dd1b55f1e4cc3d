package socket

import (
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
)

// packetRecord is what a datagram costs in the receive buffer besides its bytes, so that empty ones are bounded too.
const packetRecord = 32

// packetQueue holds received datagrams in order until they are read. It is bounded by bytes and never waits for a
// reader.
type packetQueue struct {
	limit    Deadline
	mu       sync.Mutex // guards everything below
	nonempty sync.Cond
	buf      []byte // ring of the payload bytes
	bytes    int    // bytes in use, from head on
	head     int
	packets  []packetEntry // ring
	first    int
	count    int
	err      error // returned by all reads; set by close
}

type packetEntry struct {
	from netip.AddrPort
	size int
}

func newPacketQueue(size int) *packetQueue {
	q := &packetQueue{buf: make([]byte, size), packets: make([]packetEntry, max(1, size/packetRecord))}
	q.nonempty.L = &q.mu
	return q
}

// push copies a datagram into the queue. It increments n before a reader can get the datagram. It returns false if
// there is no room.
func (q *packetQueue) push(from netip.AddrPort, b []byte, n *atomic.Uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || q.count == len(q.packets) || q.bytes+len(b) > len(q.buf) {
		return false
	}
	tail := q.head + q.bytes
	if tail >= len(q.buf) {
		tail -= len(q.buf)
	}
	copy(q.buf, b[copy(q.buf[tail:], b):])
	q.bytes += len(b)
	at := q.first + q.count
	if at >= len(q.packets) {
		at -= len(q.packets)
	}
	q.packets[at] = packetEntry{from, len(b)}
	q.count++
	n.Add(1)
	q.nonempty.Signal()
	return true
}

// pop waits for a datagram and copies as much of it as p holds; the rest is lost, as on every datagram socket.
func (q *packetQueue) pop(p []byte) (n int, from netip.AddrPort, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case q.err != nil:
			return 0, from, q.err
		case q.limit.Expired():
			return 0, from, os.ErrDeadlineExceeded
		case q.count > 0:
			n, from = q.take(p)
			return n, from, nil
		}
		q.nonempty.Wait()
	}
}

func (q *packetQueue) take(p []byte) (n int, from netip.AddrPort) {
	e := &q.packets[q.first]
	n = min(len(p), e.size)
	m := copy(p[:n], q.buf[q.head:])
	copy(p[m:n], q.buf)
	q.bytes -= e.size
	if q.head += e.size; q.head >= len(q.buf) {
		q.head -= len(q.buf)
	}
	if q.first++; q.first == len(q.packets) {
		q.first = 0
	}
	q.count--
	return n, e.from
}

// Ready implements vector.Waiter.
func (q *packetQueue) Ready() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count > 0 || q.err != nil || q.limit.Expired()
}

// wake makes all readers check the deadline.
func (q *packetQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nonempty.Broadcast()
}

// close ends reading with err; unread datagrams are lost.
func (q *packetQueue) close(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.nonempty.Broadcast()
	q.mu.Unlock()
	q.limit.Stop()
}
