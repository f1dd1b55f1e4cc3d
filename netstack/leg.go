package netstack

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/minisock"

	"github.com/smcgw/smcgw/packet"
)

// legPhase is what moves the bytes of a connection:
//
//	         beyond a mini socket, or the owner wants more
//	mini ───────────────────────────────────────────────────► leading ──► whole
//	                                                 gVisor is established
//
// A connection that the stack adopts or serves for a program begins as a mini socket, one that
// gVisor has accepted as a whole endpoint. Its end leads out of each.
type legPhase = uint32

const (
	legMini legPhase = iota
	legLeading
	legWhole
)

// mini is the part of a Conn that a mini socket moves. Of the records that a wire leg carries for
// an RDMA carrier most never need more: no endpoint, no goroutine, no hand-over to another thread.
type mini struct {
	phase atomic.Uint32 // legPhase; changes under mu
	// plain: the endpoint has everything; what is below is not looked at any more.
	plain  atomic.Bool
	broken atomic.Pointer[error] // what ended the connection before it was whole
	took   atomic.Uint64         // bytes that Write took
	heard  atomic.Uint64         // segments of the peer; those that wait for an endpoint count there, too

	header []byte // the network header of what leaves

	mu      sync.Mutex              // guards everything below; gVisor's locks may be taken under it, not it under them
	sock    *minisock.Sock          // nil: over, or nothing is left in it
	waiting []*stack.PacketBuffer   // what came while gVisor was led
	timer   tcpip.Timer             // the sock's deadline
	armed   bool                    // the timer runs
	fires   time.Duration           // when it does
	listed  bool                    // the flow is on a list of ackHolder
	wanted  []func(s *stream) error // what the owner has asked of the endpoint
	growing bool                    // Conn.grow runs
	leaving bool                    // flow.leaving is closed after it
}

// waitingMost bounds the packets that wait for an endpoint; it takes microseconds.
const waitingMost = 64

// begin enters f into the table, with a connection that a mini socket moves: c is where it stands.
func (s *Stack) begin(f *flow, c minisock.Config) (*Conn, error) {
	if scale := f.scale(); scale >= 0 {
		c.Scale, c.PeerScale = uint8(scale), uint8(f.peer().WS)
	}
	c.Now = sinceStart(s.clock)
	c.Timeout = max(2*s.cfg.MinRTO, 2*f.roundTrip()+4*ackTick)
	conn := newConn(s, f)
	conn.mini.header, conn.mini.sock, conn.synRTT = f.networkHeader(), minisock.New(c), f.rtt
	f.conn.Store(conn)
	if err := s.flows.put(f, s.cfg.Limits); err != nil {
		f.state.Store(flowDead)
		return nil, err
	}
	return conn, nil
}

// acknowledge has the handshake acknowledged, soon.
func (c *Conn) acknowledge() {
	m := &c.mini
	m.mu.Lock()
	owes := c.settleLocked(sinceStart(c.s.clock))
	m.mu.Unlock()
	c.owe(owes)
}

// readMini is Read while there is something in the mini socket, and when that has ended.
func (c *Conn) readMini(p []byte) (int, error) {
	m := &c.mini
	m.mu.Lock()
	if m.sock != nil && m.sock.Unread() > 0 {
		defer m.mu.Unlock()
		return m.sock.Read(p), nil
	}
	if m.phase.Load() == legWhole {
		m.sock = nil
		m.plain.Store(true)
		m.mu.Unlock()
		return c.whole.Read(p)
	}
	defer m.mu.Unlock()
	if err := m.broken.Load(); err != nil {
		return 0, *err
	}
	return 0, ErrWouldBlock
}

// writeMini is Write until there is an endpoint.
func (c *Conn) writeMini(p []byte) (int, error) {
	m := &c.mini
	m.mu.Lock()
	switch err := m.broken.Load(); {
	case err != nil:
		m.mu.Unlock()
		return 0, *err
	case m.phase.Load() == legWhole:
		m.mu.Unlock()
		return c.whole.Write(p)
	}
	defer m.mu.Unlock()
	n := m.sock.Write(p)
	m.took.Add(uint64(n))
	c.settleLocked(sinceStart(c.s.clock))
	if n < len(p) {
		c.growLocked()
	}
	if n == 0 {
		return 0, ErrWouldBlock
	}
	return n, nil
}

// movesLocked reports whether the mini socket moves the bytes. One that has ended sends nothing any more,
// whenever its owner takes note: the tuple may be another connection's by then.
func (m *mini) movesLocked() bool {
	return m.phase.Load() == legMini && m.sock != nil && m.broken.Load() == nil
}

// settleLocked follows whatever changes the mini socket: it sends what it may, and sets the timer. It
// reports whether an acknowledgement is owed that nothing has taken along.
func (c *Conn) settleLocked(now time.Duration) (owes bool) {
	m := &c.mini
	if !m.movesLocked() {
		return false
	}
	for seg, ok := m.sock.Next(now, c.sizeMost()); ok; seg, ok = m.sock.Next(now, c.sizeMost()) {
		c.emit(seg)
	}
	if m.sock.Stuck() {
		c.growLocked()
		return false
	}
	if at, ok := m.sock.Deadline(); ok && (!m.armed || at < m.fires) {
		c.armLocked(at, now)
	}
	if m.sock.Owes() > minisock.Unacknowledged {
		c.emit(m.sock.Ack(now))
	}
	owes = m.sock.Owes() > 0 && !m.listed
	m.listed = m.listed || owes
	return owes
}

func (c *Conn) armLocked(at, now time.Duration) {
	m := &c.mini
	m.armed, m.fires = true, at
	if m.timer == nil {
		m.timer = c.s.clock.AfterFunc(at-now, c.expired)
	} else {
		m.timer.Reset(at - now)
	}
}

// owe has an acknowledgement leave in a while, if nothing takes it along.
func (c *Conn) owe(owes bool) {
	if owes {
		c.s.acks.add(c.f)
	}
}

// letOut sends the acknowledgement that nothing has taken along.
func (c *Conn) letOut() {
	m := &c.mini
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = false
	if m.movesLocked() && m.sock.Owes() > 0 {
		c.s.count.acksLate.Add(1)
		c.emit(m.sock.Ack(sinceStart(c.s.clock)))
	}
}

// expired is called at the mini socket's deadline, or later.
func (c *Conn) expired() {
	if !c.s.hold() {
		return
	}
	defer c.s.release()
	m := &c.mini
	m.mu.Lock()
	m.armed = false
	if !m.movesLocked() {
		m.mu.Unlock()
		return
	}
	now, over := sinceStart(c.s.clock), false
	switch m.sock.Expire(now) {
	case minisock.Nothing:
	case minisock.Repeat:
		c.s.count.repeats.Add(1)
	case minisock.Probe:
		c.emit(m.sock.Probe(now))
	case minisock.Silent:
		c.emit(m.sock.Reset(now)) // as gVisor does: the peer may be there, and deaf
		over = c.breakLocked(syscall.ETIMEDOUT)
	case minisock.TooLate:
		c.growLocked()
	}
	owes := c.settleLocked(now)
	m.mu.Unlock()
	c.owe(owes)
	if over {
		c.f.wq.Notify(waiter.EventErr | waiter.ReadableEvents)
	}
}

// breakLocked ends the connection by err before it was whole.
func (c *Conn) breakLocked(err error) bool {
	return c.mini.broken.CompareAndSwap(nil, &err)
}

// takes reports whether the segment t is the mini socket's; false: gVisor's.
func (c *Conn) takes(p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) bool {
	m := &c.mini
	if m.plain.Load() {
		return false
	}
	m.mu.Lock()
	switch {
	case m.phase.Load() == legWhole:
		m.mu.Unlock()
		return false
	case m.sock == nil || m.broken.Load() != nil: // it is over
		m.mu.Unlock()
		return true
	}
	m.heard.Add(1)
	c.s.count.miniReceived.Add(1)
	if m.phase.Load() == legLeading {
		m.waitLocked(pkt)
		m.mu.Unlock()
		return true
	}
	now, n := sinceStart(c.s.clock), len(p.Header)+len(t)
	b, _ := pkt.Data().PullUp(p.Total) // moves the headers if the packet is in pieces
	verdict := m.sock.Receive(now, packet.TCP(b[len(p.Header):n]), b[n:])
	switch verdict {
	case minisock.Dropped, minisock.Taken:
	case minisock.Answer:
		c.emit(m.sock.Ack(now))
	case minisock.Over:
		c.breakLocked(syscall.ECONNRESET)
	case minisock.Beyond:
		m.waitLocked(pkt)
		c.growLocked()
	}
	owes := c.settleLocked(now)
	m.mu.Unlock()
	c.owe(owes)
	c.f.wq.Notify(waiter.ReadableEvents | waiter.WritableEvents)
	return true
}

// waitLocked keeps a packet for the endpoint.
func (m *mini) waitLocked(pkt *stack.PacketBuffer) {
	if len(m.waiting) < waitingMost { // the peer sends others again
		m.waiting = append(m.waiting, pkt.IncRef())
	}
}

// want asks for something that only an endpoint does: now, or when there is one. What is put off returns
// nil: where it fails, gVisor has ended the connection.
func (c *Conn) want(fn func(s *stream) error) error {
	m := &c.mini
	if m.plain.Load() {
		return fn(c.whole)
	}
	m.mu.Lock()
	if m.phase.Load() == legWhole {
		m.mu.Unlock()
		return fn(c.whole)
	}
	defer m.mu.Unlock()
	if m.broken.Load() == nil {
		m.wanted = append(m.wanted, fn)
		c.growLocked()
	}
	return nil
}

// setKeepalive is SetKeepalive, at once.
func (c *Conn) setKeepalive(k keepalive) error {
	m := &c.mini
	m.mu.Lock()
	if m.phase.Load() == legWhole {
		m.mu.Unlock()
		return c.whole.SetKeepalive(k.idle, k.interval, k.count)
	}
	defer m.mu.Unlock()
	if m.sock != nil {
		now := sinceStart(c.s.clock)
		m.sock.SetKeepalive(now, k.idle, k.interval, k.count)
		c.settleLocked(now)
	}
	return nil
}

// endUnread ends a connection with bytes in its mini socket that its owner does not want.
func (c *Conn) endUnread() {
	m := &c.mini
	m.mu.Lock()
	unread := m.sock != nil && m.sock.Unread() > 0
	m.mu.Unlock()
	if unread {
		c.end(true)
	}
}

// end ends what moves the bytes: an endpoint with a reset, a mini socket with one if that is wanted.
func (c *Conn) end(reset bool) {
	if !c.endMini(reset) {
		c.whole.ep.Abort()
	}
}

// endMini ends what is no endpoint yet, and reports whether it was that.
func (c *Conn) endMini(reset bool) bool {
	m := &c.mini
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase.Load() == legWhole {
		return false
	}
	if reset && m.sock != nil && m.broken.Load() == nil {
		c.emit(m.sock.Reset(sinceStart(c.s.clock)))
	}
	c.breakLocked(net.ErrClosed)
	m.dropLocked()
	return true
}

// leave says that nothing of the connection is left that could send: now, or when it has stopped to grow.
func (c *Conn) leave() {
	m := &c.mini
	m.mu.Lock()
	m.leaving = true
	growing := m.growing
	m.mu.Unlock()
	if growing {
		c.f.wq.Notify(waiter.EventErr) // Conn.lead need not wait
	} else {
		close(*c.f.leaving.Load())
	}
}

// dropLocked lets go of what a connection holds that has ended.
func (m *mini) dropLocked() {
	if m.timer != nil {
		m.timer.Stop()
	}
	m.releaseLocked()
	m.sock, m.wanted = nil, nil
}

// releaseLocked lets go of the packets that wait.
func (m *mini) releaseLocked() {
	for _, p := range m.waiting {
		p.DecRef()
	}
	m.waiting = nil
}

const (
	// stampSpace is what timestamps take with two NOPs in front.
	stampSpace = packet.TimestampsLen + 2
	// miniHeader is the largest TCP header of a mini socket.
	miniHeader = packet.TCPMinLen + stampSpace + optionSpace
)

// sizeMost is the most bytes of one segment.
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
	c.s.shim.send(buildTCP(c.mini.header, head[:], opts, seg.Payload))
}
