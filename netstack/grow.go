package netstack

import (
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/netstack/minisock"
	"github.com/smcgw/smcgw/packet"
)

// growLocked starts creating an endpoint that continues where the mini socket stands, because of the event on. Until
// the endpoint exists, what arrives and what is written waits.
func (c *Conn) growLocked(on legEvent) {
	if c.f.state() != legMini || !c.s.hold() {
		return
	}
	c.f.step(on)
	c.s.count.grown.Add(1)
	n := c.sock.Numbers(sinceStart(c.s.clock))
	n.Written = nil // more may be written until the hand-over
	before, led := c.f.left, make(chan struct{})
	c.f.left = led
	go c.grow(before, led, n) // bounded: once per connection, and ends
}

// grow leads gVisor through a handshake that does not appear on the wire: gVisor connects, the shim swallows its SYN,
// and the SYN-ACK that answers it begins with the numbers at which the connection stands. If an earlier flow on the
// tuple is still being led, grow waits until its endpoint has been made and ended.
func (c *Conn) grow(before <-chan struct{}, led chan<- struct{}, n minisock.Numbers) {
	defer c.s.release()
	defer close(led)
	if before != nil {
		<-before
	}
	ep, err := c.lead(n)
	if err == nil {
		err = c.handOver(ep)
	}
	if err != nil {
		c.s.cfg.Logger.Debug("wire leg without endpoint", "tuple", c.f.key.tuple(), "error", err)
		c.ungrown(ep)
	}
	c.f.wq.Notify(waiter.ReadableEvents | waiter.WritableEvents)
}

// ungrown ends a connection that got no endpoint.
func (c *Conn) ungrown(ep tcpip.Endpoint) {
	if ep != nil {
		ep.Abort() // its reset is swallowed, or is equivalent to the next one
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetLocked()
	switch {
	case !c.f.step(legNotLed): // the owner has ended it
	case c.f.alive():
		c.err = errNoEndpoint
		c.releaseLocked()
	default:
		c.goneLocked()
	}
}

// lead returns the endpoint once it is established.
func (c *Conn) lead(n minisock.Numbers) (tcpip.Endpoint, error) {
	s, f := c.s, c.f
	if !f.state().led() {
		return nil, errNoEndpoint // the owner has ended it
	}
	g := &grown{origin: segment.Origin{ISN: n.Seq - 1, Stamp: n.Stamp, Sent: n.Sent}}
	if f.peer().TS {
		g.stamps.Begin(n.Recent)
	}
	f.grow(g)
	tuple := f.key.tuple()
	local, proto := fullAddress(tuple.Local)
	remote, _ := fullAddress(tuple.Remote)
	ep, terr := s.stack.NewEndpoint(tcp.ProtocolNumber, proto, c.f.wq)
	if terr != nil {
		return nil, mapError(terr)
	}
	entry, changed := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	c.f.wq.EventRegister(&entry)
	defer c.f.wq.EventUnregister(&entry)
	// As in the kernel, connections with different peers may share a local port.
	ep.SocketOptions().SetReuseAddress(true)
	ep.SocketOptions().SetDelayOption(false)
	ep.SocketOptions().SetReceiveBufferSize(int64(min(legBuffer, s.cfg.ReceiveBuffer)), false)
	f.look().dress(ep)
	if terr = ep.Bind(local); terr == nil {
		terr = ep.Connect(remote)
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); !started {
		return ep, fmt.Errorf("connect: %w", mapError(terr))
	}
	if !g.numbers.Ready() {
		return ep, errNoEndpoint // no SYN: the flow has ended in the meantime
	}
	s.inject(c.answer(&g.numbers, n))
	late := time.NewTimer(s.cfg.HandshakeTimeout) // nothing here waits for the network
	defer late.Stop()
	for state := tcp.EndpointState(ep.State()); state != tcp.StateEstablished; state = tcp.EndpointState(ep.State()) {
		if !f.state().led() || state == tcp.StateError || state == tcp.StateClose {
			return ep, errNoEndpoint // the owner or gVisor has ended it
		}
		select {
		case <-changed:
		case <-late.C:
			return ep, fmt.Errorf("%w: not established in time", errNoEndpoint)
		}
	}
	return ep, nil
}

// answer returns the SYN-ACK for gVisor's SYN, in gVisor's numbers. The timestamp that it echoes is one round trip old.
// Otherwise gVisor would take the duration of the hand-over for the round trip, and retransmit every few milliseconds.
func (c *Conn) answer(x *segment.Map, n minisock.Numbers) []byte {
	tuple, o := c.f.key.tuple(), c.f.peer()
	o.MSS = uint16(c.f.segMax.Load() - packet.TCPMinLen) // includes what the path has reported since
	o.TSVal, o.TSEcr = n.Recent.Value, x.Echo(uint32(c.f.roundTrip().Milliseconds()))
	return packet.Segment{
		Src: tuple.Remote, Dst: tuple.Local, Seq: n.Ack - 1, Ack: x.Acked(n.Seq),
		Flags: packet.FlagSYN | packet.FlagACK, Window: uint16(min(n.Window, 0xffff)), Options: o.Append(nil),
	}.Append(nil)
}

// handOver gives the endpoint everything that the mini socket and the owner have for it.
func (c *Conn) handOver(ep tcpip.Endpoint) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.f.state().led() {
		return errNoEndpoint // the owner has ended it
	}
	e := &stream{ep: ep}
	written := c.sock.Numbers(0).Written
	if n, err := e.Write(written); n < len(written) {
		return fmt.Errorf("write again: %w", err)
	}
	e.written.Store(0) // Conn.took already counts them
	idle, interval, count := c.sock.Keepalive()
	if err := e.SetKeepalive(idle, interval, count); err != nil {
		return fmt.Errorf("keepalive: %w", err)
	}
	for _, fn := range c.wanted {
		_ = fn(e) // the owner ignores the error, too
	}
	if c.f.state() == legShut {
		_ = e.close(c.s.cfg.CloseTimeout)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	e.led = e.received() // the SYN-ACK
	for _, p := range c.waiting {
		c.s.shim.resume(c.f, p)
	}
	c.releaseLocked()
	c.wanted, c.whole = nil, e
	c.f.step(legLed) // after the waiting packets, so that nothing overtakes them
	if c.sock.Unread() == 0 {
		c.sock = nil
		c.f.step(legRead)
	}
	c.deliveredLocked()
	return nil
}

// errNoEndpoint means that gVisor could not continue a connection.
var errNoEndpoint = errors.New("no endpoint for the wire leg")

// peer returns what the handshake has agreed on, in the form of the peer's options: what both sides have asked for.
func (f *flow) peer() packet.TCPOptions {
	if f.server {
		return f.serve.proof.Ask
	}
	a := f.adopt
	o := a.peer
	o.TS, o.SACK = a.app.TS && a.peer.TS, a.app.SACK && a.peer.SACK
	if a.app.WS < 0 {
		o.WS = -1
	}
	return o
}

// scale returns by how much our windows are shifted on the wire, or -1 if they are not scaled.
func (f *flow) scale() int8 {
	switch {
	case f.peer().WS < 0:
		return -1
	case f.server:
		return cookieScale
	default:
		return f.adopt.app.WS
	}
}

// grown is the state of a flow whose bytes gVisor moves. Conn.lead sets it before gVisor knows of the flow. Most wire
// legs never need it.
type grown struct {
	origin  segment.Origin // of the endpoint
	numbers segment.Map    // between the wire and the endpoint
	acks    heldACK
	ahead   segment.Ahead // what gVisor keeps ahead of a gap
	stamps  segment.PAWS  // of the peer
	fitting fitting
}

func (f *flow) grow(g *grown) {
	g.fitting.path.V6 = f.key.v6
	f.grown.Store(g)
}

// acked records an acknowledgement by the peer.
func (f *flow) acked(s *Stack, ack uint32) {
	if g := f.grown.Load(); g != nil {
		g.fitting.acked(ack, s.clock)
	}
}
