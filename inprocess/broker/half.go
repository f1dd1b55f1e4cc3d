package broker

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// Beyond promotes connections whose other end is on another host. The broker calls its methods with the broker's lock
// held: they must not block or call methods of the broker.
type Beyond interface {
	// Waits announces an end that waits, since its other end has not asked on this host.
	Waits(h *Half)
	// Over announces that an end no longer waits and was not granted. If it was granted, Grant has said so.
	Over(h *Half)
	// Socket hands over a duplicate of the socket of a granted end whose process has its memory. Beyond owns fd from
	// then on.
	Socket(h *Half, fd int)
	// Ended announces that a granted end has ended: its process says so (closed), or has disconnected from the broker.
	Ended(h *Half, closed bool)
	// Alone announces, after Ended, that no process has the memory of the end any more.
	Alone(h *Half)
}

// Cause is why an end has no carrier to another host, numbered by the Beyond that looked for the other end; 0 means
// unknown.
type Cause struct {
	Number uint8
	Remote bool // the other host decided it
}

// Tells reports whether the cause tells more than why, the reason of the library or the broker.
func (c Cause) Tells(why inprocess.Why) bool {
	return c.Number != 0 && (why == inprocess.WhyRecalled || why == inprocess.WhyNoPeer)
}

// Half is a connection of which one end has asked, as the Beyond sees it that looks for the other end on another host.
type Half struct {
	broker *Broker
	end    *end
	beyond Beyond
	alone  bool // Alone was called
	given  bool // Socket was called, or its process had no descriptor for it

	// ID is the ID that the connection has once it is granted.
	ID uint64
	// Process and Socket are the end's. Socket.Named is true.
	Process Process
	Socket  Socket
	// Member identifies the process within this broker.
	Member uint64
	// MostOrder is the binary logarithm of the size of the largest rings for which there was room when the end began to
	// wait.
	MostOrder uint32
}

// ErrGone means that the process of an end has disconnected from the broker.
var ErrGone = errors.New("the process has gone")

// Desk returns a duplicate of the descriptor of the process's desk. The caller owns it.
func (h *Half) Desk() (fd int, err error) {
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	c := h.end.of.client
	if c.news == nil {
		return -1, ErrGone
	}
	return unix.FcntlInt(uintptr(c.desk.Read), unix.F_DUPFD_CLOEXEC, 0)
}

// Grant gives the end its memory, whose rings have 2^order bytes, and counts the connection. The broker owns the
// descriptors in any case. It returns false if the end no longer waits, or if there is no room for it.
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
		e.cause = Cause{} // of a host that it was looked for before
		b.told(ToldPromoted, e, inprocess.WhyNone)
		ok = true
		return nil
	})
	return ok
}

// Refuse denies the end if it still waits: its program asks again soon. Do not call it from a method of Beyond.
func (h *Half) Refuse() {
	h.broker.do(func(c *core) []denial {
		if h.end.state != endWaiting {
			return nil
		}
		return []denial{c.refuse(h.end, inprocess.WhyNoPeer)}
	})
}

// Blame records why the end has no carrier, or has lost it. The first cause counts.
func (h *Half) Blame(c Cause) {
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	if h.end.cause == (Cause{}) {
		h.end.cause = c
	}
}

// SetBeyond has y look on other hosts for the other ends of those that wait now or ask later; nil means this host only.
// An end that was granted stays with the Beyond that granted it.
func (b *Broker) SetBeyond(y Beyond) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beyond = y
	for l := b.core.waiting.Front(); l != nil; l = l.Next() {
		b.seek(l.Value.(*end))
	}
}

// seek has Beyond look for the other end of a waiting end. The caller holds the lock.
func (b *Broker) seek(e *end) {
	if b.beyond == nil || e == nil || e.state != endWaiting || !e.socket.Named {
		return
	}
	b.core.nextID++
	_, share := b.core.remains(e.of, e.of)
	e.half = &Half{
		broker: b, end: e, beyond: b.beyond, ID: b.core.nextID, Process: e.of.client.process, Socket: e.socket, Member: e.of.number,
		MostOrder: inprocess.OrderWithin(share, inprocess.OrderMax),
	}
	b.beyond.Waits(e.half)
}

// socket handles a Socket record: the socket of a granted end, which its process sends once it has its memory. fd is -1
// if this process had no descriptor left for it; then no token can be sent for the end.
func (c *client) socket(r inprocess.Record, fd int) error {
	c.news.released() // its library counts it as a question, although this socket is kept
	var cookie uint64
	if fd >= 0 {
		var err error
		if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
			_ = unix.Close(fd)
			return &SocketError{"cookie", inprocess.WhyProtocol, err}
		}
	}
	b := c.broker
	defer func() { shared.CloseSocket(&fd) }() // without the lock
	b.mu.Lock()
	defer b.mu.Unlock()
	e := c.member.ends[inprocess.Index(r.Tag)]
	if e == nil || e.tag != r.Tag || e.half == nil || e.state != endPromoted { // it has ended
		return nil
	}
	again := e.half.given
	e.half.given = true
	switch {
	case again: // each would take a descriptor of the gateway's until a shard has looked at it
		return &protocolError{"the socket of an end again"}
	case fd < 0:
		e.half.beyond.Ended(e.half, false)
	case e.socket.Cookie != cookie:
		return &protocolError{"the socket of another connection"}
	default:
		e.half.beyond.Socket(e.half, fd)
		fd = -1
	}
	return nil
}

// tellAlone tells Beyond, once, that no process has the memory of an ended end any more. The caller holds the lock.
func (h *Half) tellAlone() {
	if !h.alone {
		h.alone = true
		h.beyond.Alone(h)
	}
}

// tellBeyond reports news about ends that Beyond looks after. The caller holds the lock.
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
