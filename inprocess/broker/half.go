package broker

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// Beyond has connections promoted whose other end is on another host. The broker calls it with its lock held: its methods
// wait for nothing, and call none of the broker's.
type Beyond interface {
	// Waits tells of an end that waits, since its other end has not asked on this host.
	Waits(h *Half)
	// Over tells that an end does not wait any more, and was not granted: Grant would say so.
	Over(h *Half)
	// Socket gives a duplicate of the socket of an end that was granted, whose process has its memory. It is Beyond's.
	Socket(h *Half, fd int)
	// Ended tells that an end that was granted has ended: its process says so (closed), or has let go of the broker.
	Ended(h *Half, closed bool)
	// Alone tells, after Ended, that no process has the memory of the end any more.
	Alone(h *Half)
}

// Cause is why an end has no carrier to another host, by the numbers of who looks for the other end there; 0: it is not known.
type Cause struct {
	Number uint8
	Remote bool // the other host has decided it
}

// Tells reports whether the cause tells more than what a library, or the broker, says.
func (c Cause) Tells(why inprocess.Why) bool {
	return c.Number != 0 && (why == inprocess.WhyRecalled || why == inprocess.WhyNoPeer)
}

// Half is a connection of which one end has asked, for who looks for the other end on another host.
type Half struct {
	broker *Broker
	end    *end
	beyond Beyond
	alone  bool // is told

	// ID is that of the connection, if it is granted.
	ID uint64
	// Process and Socket are those of the end. The socket has a name.
	Process Process
	Socket  Socket
	// Member tells the processes of this broker apart.
	Member uint64
}

// Desk is a duplicate of the desk of the process, which is the caller's.
func (h *Half) Desk() (fd int, err error) {
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	c := h.end.of.client
	if c.news == nil {
		return -1, errors.New("the process has gone")
	}
	return unix.FcntlInt(uintptr(c.desk.Read), unix.F_DUPFD_CLOEXEC, 0)
}

// Grant gives the end its memory, whose rings have 2^order bytes, and counts it. The descriptors are the broker's, whatever
// comes of it. False: the end does not wait any more, or there is no room for it.
func (h *Half) Grant(m shared.Portion, order uint32, carrier string) (ok bool) {
	b, e := h.broker, h.end
	defer m.Close()
	b.do(func(c *core) []denial {
		if e.state != endWaiting {
			return nil
		}
		p, why := c.pairBeyond(e, h.ID, order)
		if p == nil {
			return []denial{c.refuse(e, why)}
		}
		p.carrier = carrier
		mem := memories{shared.None, shared.None}
		mem[e.side].Kept, mem[1-e.side].Kept = m.Own.Kept, m.Mirror.Kept
		m.Own.Kept, m.Mirror.Kept = -1, -1
		p.mem = &mem
		r := inprocess.Record{What: inprocess.Grant, Tag: e.tag, Side: e.side, ID: p.id}
		if !b.queue(e.of.client, r, m.Own.Write, m.Mirror.Read, m.Bell) {
			e.half = nil
			return c.undo(p, inprocess.WhyLimit)
		}
		c.granted(p)
		b.told(ToldPromoted, e, inprocess.WhyNone)
		ok = true
		return nil
	})
	return ok
}

// Deny says no to the end, if it waits.
func (h *Half) Deny(why inprocess.Why) {
	h.broker.do(func(c *core) []denial {
		if h.end.state != endWaiting {
			return nil
		}
		return []denial{c.refuse(h.end, why)}
	})
}

// Blame notes why there is no carrier for the end, or no more. The first cause is the one.
func (h *Half) Blame(c Cause) {
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	if h.end.cause == (Cause{}) {
		h.end.cause = c
	}
}

// SetBeyond has ends that wait, and those that ask from now on, looked for on other hosts; nil: on this one only. What was
// granted stays with who granted it.
func (b *Broker) SetBeyond(y Beyond) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beyond = y
	for l := b.core.waiting.Front(); l != nil; l = l.Next() {
		b.seek(l.Value.(*end))
	}
}

// seek has the other end of one that waits looked for beyond this host. The caller holds the lock.
func (b *Broker) seek(e *end) {
	if b.beyond == nil || e == nil || e.state != endWaiting || !e.socket.Named {
		return
	}
	b.core.nextID++
	e.half = &Half{
		broker: b, end: e, beyond: b.beyond, ID: b.core.nextID, Process: e.of.client.process, Socket: e.socket, Member: e.of.number,
	}
	b.beyond.Waits(e.half)
}

// socket takes in that of an end that was granted, which its process gives after it has its memory; -1: there was no
// descriptor for it, and the end cannot be rung for.
func (c *client) socket(r inprocess.Record, fd int) error {
	c.news.released() // it counts as a question, though it is kept
	var cookie uint64
	if fd >= 0 {
		var err error
		if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
			_ = unix.Close(fd)
			return &SocketError{"cookie", inprocess.WhyProtocol, err}
		}
	}
	b := c.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	e := c.member.ends[inprocess.Index(r.Tag)]
	switch {
	case e == nil || e.tag != r.Tag || e.half == nil || e.state != endPromoted: // it has ended
		shared.Close(&fd)
	case fd < 0:
		e.half.beyond.Ended(e.half, false)
	case e.socket.Cookie != cookie:
		_ = unix.Close(fd)
		return &protocolError{"the socket of another connection"}
	default:
		e.half.beyond.Socket(e.half, fd)
	}
	return nil
}

// nobody is when no process has the memory of an end that has ended. The caller holds the lock.
func (h *Half) nobody() {
	if !h.alone {
		h.alone = true
		h.beyond.Alone(h)
	}
}

// tellBeyond tells of ends that have been looked for on other hosts. The caller holds the lock.
func (b *Broker) tellBeyond() {
	for _, e := range b.core.halves {
		h := e.half
		switch {
		case h == nil:
		case e.conn == nil || e.conn.both():
			e.half = nil
			h.beyond.Over(h)
		case e.state == endGone:
			h.beyond.Ended(h, e.closed)
		}
	}
	clear(b.core.halves)
	b.core.halves = b.core.halves[:0]
}
