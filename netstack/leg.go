package netstack

import (
	"encoding/binary"
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/minisock"

	"github.com/smcgw/smcgw/packet"
)

// waitingMost bounds the packets that wait for an endpoint, which takes microseconds.
const waitingMost = 64

// begin enters f into the table with a connection in state c, moved by a mini socket.
func (s *Stack) begin(f *flow, c minisock.Config) (*Conn, error) {
	if scale := f.scale(); scale >= 0 {
		c.Scale, c.PeerScale = uint8(scale), uint8(f.peer().WS)
	}
	c.Now = sinceStart(s.clock)
	c.Timeout = max(2*s.cfg.MinRTO, 2*f.roundTrip()+4*ackTick)
	conn := newConn(s, f, minisock.New(c))
	f.conn.Store(conn)
	if err := s.flows.put(f, s.cfg.Limits); err != nil {
		return nil, err
	}
	return conn, nil
}

// acknowledge makes the handshake be acknowledged soon.
func (c *Conn) acknowledge() {
	c.mu.Lock()
	owes := c.settleLocked(sinceStart(c.s.clock))
	c.mu.Unlock()
	c.owe(owes)
}

// readMini implements Read while the mini socket has bytes, or there is no endpoint.
func (c *Conn) readMini(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sock != nil && c.sock.Unread() > 0:
		return c.sock.Read(p), nil
	case c.whole != nil:
		c.sock = nil
		c.f.step(legRead)
		return c.whole.Read(p)
	case c.err != nil:
		return 0, c.err
	}
	return 0, ErrWouldBlock
}

// writeMini implements Write until there is an endpoint, and after the end.
func (c *Conn) writeMini(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch l := c.f.state(); {
	case l == legSplit, l == legWhole:
		return c.whole.Write(p)
	case c.err != nil:
		return 0, c.err
	case l != legMini && l != legLeading:
		return 0, net.ErrClosed
	}
	n := c.sock.Write(p)
	c.took.Add(uint64(n))
	c.settleLocked(sinceStart(c.s.clock))
	if n < len(p) {
		c.growLocked(legGrows)
	}
	if n == 0 {
		return 0, ErrWouldBlock
	}
	return n, nil
}

// settleLocked follows every change of the mini socket: it sends what may be sent, and sets the timer. It reports
// whether an acknowledgement is owed that no segment carried.
func (c *Conn) settleLocked(now time.Duration) (owes bool) {
	if c.f.state() != legMini {
		return false
	}
	for seg, ok := c.sock.Next(now, c.sizeMost()); ok; seg, ok = c.sock.Next(now, c.sizeMost()) {
		c.emit(seg)
	}
	if c.sock.Stuck() {
		c.growLocked(legGrows)
		return false
	}
	if at, ok := c.sock.Deadline(); ok && (c.fires == 0 || at < c.fires) {
		c.armLocked(at, now)
	}
	if c.sock.Owes() > minisock.Unacknowledged {
		c.emit(c.sock.Ack(now))
	}
	owes = c.sock.Owes() > 0 && !c.listed
	c.listed = c.listed || owes
	return owes
}

func (c *Conn) armLocked(at, now time.Duration) {
	c.fires = at
	if c.timer == nil {
		c.timer = c.s.clock.AfterFunc(at-now, c.expired)
	} else {
		c.timer.Reset(at - now)
	}
}

// owe schedules an acknowledgement, which leaves after a while unless another segment carries it.
func (c *Conn) owe(owes bool) {
	if owes {
		c.s.acks.add(c.f)
	}
}

// letOut sends the acknowledgement that no segment has carried.
func (c *Conn) letOut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listed = false
	if c.f.state() == legMini && c.sock.Owes() > 0 {
		c.s.count.acksLate.Add(1)
		c.emit(c.sock.Ack(sinceStart(c.s.clock)))
	}
}

// expired is called at or after the mini socket's deadline.
func (c *Conn) expired() {
	if !c.s.hold() {
		return
	}
	defer c.s.release()
	c.mu.Lock()
	c.fires = 0
	if c.f.state() != legMini {
		c.mu.Unlock()
		return
	}
	now, over := sinceStart(c.s.clock), false
	switch c.sock.Expire(now) {
	case minisock.Nothing:
	case minisock.Repeat:
		c.s.count.repeats.Add(1)
	case minisock.Probe:
		c.emit(c.sock.Probe(now))
	case minisock.Silent:
		c.emit(c.sock.Reset(now)) // as gVisor does: the peer may be alive but unable to hear
		over = c.breakLocked(syscall.ETIMEDOUT)
	case minisock.TooLate:
		c.growLocked(legGrows)
	}
	owes := c.settleLocked(now)
	c.mu.Unlock()
	c.owe(owes)
	if over {
		c.f.wq.Notify(waiter.EventErr | waiter.ReadableEvents)
	}
}

// breakLocked ends a mini socket with err, and reports whether it had not ended before.
func (c *Conn) breakLocked(err error) bool {
	broke := c.f.step(legBroke)
	if broke {
		c.err = err
	}
	return broke
}

// takes handles the segment t unless an endpoint must get it. It reports whether it did.
func (c *Conn) takes(p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) bool {
	if c.f.state().endpoint() {
		return false
	}
	c.mu.Lock()
	switch l := c.f.state(); {
	case l.endpoint():
		c.mu.Unlock()
		return false
	case l.led():
		c.heard.Add(1)
		c.waitLocked(pkt)
		c.mu.Unlock()
		return true
	case l != legMini: // the leg is over
		c.mu.Unlock()
		return true
	}
	c.heard.Add(1)
	now, n := sinceStart(c.s.clock), len(p.Header)+len(t)
	b, _ := pkt.Data().PullUp(p.Total) // moves the headers if the packet is fragmented in memory
	verdict := c.sock.Receive(now, packet.TCP(b[len(p.Header):n]), b[n:])
	switch verdict {
	case minisock.Dropped, minisock.Taken:
	case minisock.Answer:
		c.emit(c.sock.Ack(now))
	case minisock.Over:
		c.breakLocked(syscall.ECONNRESET)
	case minisock.Beyond:
		c.waitLocked(pkt)
		c.growLocked(legGrows)
	}
	owes := c.settleLocked(now)
	c.mu.Unlock()
	c.owe(owes)
	c.f.wq.Notify(waiter.ReadableEvents | waiter.WritableEvents)
	return true
}

// waitLocked keeps a packet for the endpoint.
func (c *Conn) waitLocked(pkt *stack.PacketBuffer) {
	if len(c.waiting) < waitingMost { // the peer retransmits the others
		c.waiting = append(c.waiting, pkt.IncRef())
	}
}

// want asks for something that only an endpoint can do: now, or as soon as there is one. A deferred request returns
// nil; should it fail later, gVisor has ended the connection.
func (c *Conn) want(fn func(s *stream) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.f.state() {
	case legMini, legLeading:
		c.wanted = append(c.wanted, fn)
		c.growLocked(legGrows)
	case legSplit, legWhole:
		return fn(c.whole)
	default: // the owner has ended it, or will learn that it is broken
	}
	return nil
}

// setKeepaliveLocked sets the keepalive immediately.
func (c *Conn) setKeepaliveLocked(k keepalive) error {
	switch l := c.f.state(); {
	case l.endpoint():
		return c.whole.SetKeepalive(k.idle, k.interval, k.count)
	case l == legMini, l.led():
		now := sinceStart(c.s.clock)
		c.sock.SetKeepalive(now, k.idle, k.interval, k.count)
		c.settleLocked(now)
	}
	return nil
}

// resetLocked sends a reset if the leg is alive and not broken.
func (c *Conn) resetLocked() {
	switch l := c.f.state(); {
	case l.endpoint():
		c.whole.ep.Abort()
	case l == legMini, l.led():
		c.emit(c.sock.Reset(sinceStart(c.s.clock)))
	}
}

// goneLocked releases what an ended connection holds, and its place in the table.
func (c *Conn) goneLocked() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.releaseLocked()
	c.sock, c.wanted = nil, nil
	c.s.retire(c.f)
	c.f.wq.Notify(waiter.EventErr) // stops Conn.lead from waiting
}

// releaseLocked releases the waiting packets.
func (c *Conn) releaseLocked() {
	for _, p := range c.waiting {
		p.DecRef()
	}
	c.waiting = nil
}

const (
	// stampSpace is the size of timestamps behind two NOPs.
	stampSpace = packet.TimestampsLen + 2
	// miniHeader is the largest TCP header of a mini socket.
	miniHeader = packet.TCPMinLen + stampSpace + optionSpace
)

// sizeMost returns the largest payload of a segment of the mini socket.
func (c *Conn) sizeMost() int { return max(int(c.f.segMax.Load())-miniHeader, 1) }

// emit sends one segment of the mini socket.
func (c *Conn) emit(seg minisock.Segment) {
	var head [packet.TCPMinLen]byte
	t := packet.TCP(head[:])
	binary.BigEndian.PutUint16(t, c.f.key.lport)
	binary.BigEndian.PutUint16(t[2:], c.f.key.rport)
	t.SetSeq(seg.Seq)
	t.SetAck(seg.Ack)
	t.SetFlags(seg.Flags)
	t.SetWindow(seg.Window)
	opts := packet.AppendTimestamps(make([]byte, 0, stampSpace+optionSpace), seg.TSVal, seg.TSEcr)
	if !c.f.server && seg.Seq == c.f.isn+1 && seg.Flags&packet.FlagRST == 0 {
		opts = appendOption(opts, packet.RoleConfirm, c.f.nonce)
	}
	c.f.noteSent(seg.Seq + uint32(len(seg.Payload)))
	c.f.awaited.Store(seg.Ack)
	c.s.count.miniSent.Add(1)
	c.s.shim.send(buildTCP(c.header, head[:], opts, seg.Payload))
}
