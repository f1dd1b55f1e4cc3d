package conn

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// pump moves the bytes of one flow between its app leg and whatever carries them. It belongs
// to the flow's shard: its methods run on the shard's thread, and other goroutines reach it
// by posting.
//
// There are three: carry, relay and rawRelay. A carry moves bytes immediately, with a budget
// of reads per turn of the shard. The other two move bytes only within their part of the
// shard's bulk budget (loop.BulkTurn), because each byte costs a pass through a TCP stack.
type pump interface {
	// The owner is the flow, which a panic in the pump ends; the events are edges of the app
	// leg.
	loop.Member
	// watchable returns the descriptor of the app leg if there is a data path that could
	// stall; lookForStall then checks it (stall_sweep.go).
	watchable() (fd int, ok bool)
	lookForStall(leg legReady, now time.Time, timeout time.Duration)
}

// legEdges is what epoll and the last system calls said about an app leg.
type legEdges struct {
	readable, writable bool // no EAGAIN since the last edge
	hup                bool // the app closed its side: read until the end of the stream
	urgent             bool // an urgent byte has come: a read may stop short in front of it
	failed             bool // the app reset; what it sent before can still be read

	taken uint64 // bytes read
	room  legs.Room
}

// take adds edges that epoll has reported.
func (e *legEdges) take(edges uint32) {
	if edges&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.hup, e.readable, e.writable = true, true, true
	}
	if edges&unix.EPOLLERR != 0 {
		e.failed = true
	}
	if edges&unix.EPOLLIN != 0 {
		e.readable = true
	}
	if edges&unix.EPOLLPRI != 0 {
		e.urgent, e.readable = true, true
	}
	if edges&unix.EPOLLOUT != 0 {
		e.writable = true
	}
}

// legRead is the outcome of a read from an app leg.
type legRead uint8

const (
	legBytes   legRead = iota // bytes were read
	legNothing                // nothing until the next edge
	legEnd                    // the application has ended its direction
	legReset                  // the application has reset the connection
)

// read reads from the app leg into b, which must not be empty, during a turn that began at
// now.
func (e *legEdges) read(fd int, b []byte, now time.Time) (int, legRead) {
	for {
		n, errno := loop.RawRead(fd, b)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			// In front of an urgent byte any pending signal, such as the runtime's for preemption, is EAGAIN, too,
			// whatever has come; and no edge follows.
			if e.urgent {
				if unread, err := unix.IoctlGetInt(fd, unix.SIOCINQ); err == nil && unread > 0 {
					continue
				}
			}
			e.readable, e.urgent = false, false
			return 0, legNothing
		case errno != 0, n == 0 && e.failed && !e.ended(fd): // once the error was reported, a read returns 0
			e.failed = true
			return 0, legReset
		case n == 0:
			return 0, legEnd
		default:
			if n < len(b) && !e.hup && !e.urgent {
				e.readable = false // a short read drained it; the next byte causes an edge
			}
			e.taken += uint64(n)
			e.room.Read(fd, n, now)
			return n, legBytes
		}
	}
}

// ended reports whether the application has ended its direction, all of which has been read,
// before it reset the connection: the kernel counts a FIN as a byte.
func (e *legEdges) ended(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Bytes_received > e.taken
}

// write writes as much of b, which must not be empty, as the app leg takes.
func (e *legEdges) write(fd int, b []byte) int {
	for {
		n, errno := loop.RawSend(fd, b)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			e.writable = false
			return 0
		case errno != 0:
			e.failed, e.writable, e.readable = true, false, true
			return 0
		default:
			if n < len(b) {
				e.writable = false
			}
			return n
		}
	}
}

// backlog is a queue of bytes waiting to be taken. The zero value is empty.
type backlog struct {
	buf  []byte
	head int // taken
}

// backlogKeep is the capacity up to which an empty backlog keeps its buffer.
const backlogKeep = 4 << 10

func (q *backlog) len() int      { return len(q.buf) - q.head }
func (q *backlog) bytes() []byte { return q.buf[q.head:] }

// put appends b.
func (q *backlog) put(b []byte) {
	if q.head > 0 && len(q.buf)+len(b) > cap(q.buf) {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, b...)
}

// drop removes the first n bytes.
func (q *backlog) drop(n int) {
	if q.head += n; q.head < len(q.buf) {
		return
	}
	q.head, q.buf = 0, q.buf[:0]
	if cap(q.buf) > backlogKeep {
		q.buf = nil
	}
}
