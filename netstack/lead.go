package netstack

import (
	"encoding/binary"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/smcgw/smcgw/packet"
)

// led is a handshake that gVisor is led through, of which nothing is on the wire: gVisor
// connects, the shim swallows its SYN, and the SYN-ACK that answers is injected. So begin
// the connections of clients, which their applications began, and those of clients that
// answered a SYN-ACK which a program had sent.
//
//	Stack.lead ─► SYN ─► translation ─► SYN-ACK ─► gVisor is established: Stack.opened ─► ledOver
//	                                       └── Stack.giveUp ────────────────────────────────┘
type led struct {
	conn *Conn
	done func(c *Conn, err error) // called once

	mu    sync.Mutex // guards everything below
	over  bool
	timer tcpip.Timer
}

// lead enters f into the table and takes gVisor through its handshake, of which done is told,
// unless there is an error. synack is the SYN-ACK in the numbers of the wire, and lead's to
// change; its echoed timestamp becomes age milliseconds old. The caller holds the stack
// (Stack.hold); the handshake does until it is over.
func (s *Stack) lead(f *flow, synack []byte, age uint32, done func(*Conn, error)) error {
	ep, err := s.newLed(f, done)
	s.busy.Add(1)
	if err == nil {
		err = s.flows.put(f, s.cfg.Limits)
	}
	if err != nil {
		f.state.Store(flowDead) // before the end of the endpoint, which is an event
		if ep != nil {
			ep.Close()
		}
		s.release()
		return err
	}
	s.watchLed(f)
	if err := s.connectLed(f, ep); err != nil {
		s.giveUp(f, err)
		return nil
	}
	s.injectSYNACK(f, synack, age)
	return nil
}

// newLed makes the endpoint of f.
func (s *Stack) newLed(f *flow, done func(*Conn, error)) (tcpip.Endpoint, error) {
	_, proto := fullAddress(f.key.tuple().Local)
	ep, terr := s.stack.NewEndpoint(tcp.ProtocolNumber, proto, f.wq)
	if terr != nil {
		return nil, mapError(terr)
	}
	f.led = &led{conn: newConn(s, f, ep), done: done}
	f.led.conn.synRTT = f.rtt
	return ep, nil
}

// watchLed bounds the handshake: nothing in it waits for the network.
func (s *Stack) watchLed(f *flow) {
	f.led.mu.Lock()
	defer f.led.mu.Unlock()
	if !f.led.over {
		f.led.timer = s.clock.AfterFunc(s.cfg.HandshakeTimeout, func() { s.giveUp(f, ErrHandshakeTimeout) })
	}
}

// connectLed has gVisor send the SYN, of which the shim makes the translation.
func (s *Stack) connectLed(f *flow, ep tcpip.Endpoint) error {
	local, _ := fullAddress(f.key.tuple().Local)
	remote, _ := fullAddress(f.key.tuple().Remote)
	// The kernel gives one local port to connections with different peers.
	ep.SocketOptions().SetReuseAddress(true)
	if !f.server {
		f.adopt.look.dress(ep)
	}
	terr := ep.Bind(local)
	if terr == nil {
		terr = ep.Connect(remote)
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); !started {
		return mapError(terr)
	}
	if !f.translation().ready.Load() {
		return net.ErrClosed // no SYN: the flow has ended meanwhile
	}
	return nil
}

// injectSYNACK gives gVisor the answer to its SYN, with an echoed timestamp that is age
// milliseconds old: gVisor would take the hand-over for the round trip, and retransmit
// every few milliseconds.
func (s *Stack) injectSYNACK(f *flow, synack []byte, age uint32) {
	_, t, ok := parseTCP(synack)
	if !ok {
		return // cannot be: the caller has read it, or made it
	}
	x := f.translation()
	x.in(t)
	if echo := echoOf(t); echo != nil {
		binary.BigEndian.PutUint32(echo, x.synTS-age)
	}
	s.inject(synack)
}

// ledEvent is told of every event until the handshake is over. It runs on gVisor's
// goroutines, with locks held that the owner would wait for at once: another goroutine tells
// it, behind what this one has to do.
func (s *Stack) ledEvent(c *Conn) {
	f := c.f
	switch {
	case c.over():
		if s.bury(f, flowHandshake) {
			go s.ledOver(f, net.ErrClosed) // bounded: once a flow, and ends
		}
	case c.established():
		f.conn.Store(c)
		if f.state.CompareAndSwap(flowHandshake, flowOpen) {
			go s.ledOver(f, nil) // as above
		} else if !f.alive() {
			f.conn.Store(nil)
		}
	}
}

// established reports whether the handshake is over.
func (c *Conn) established() bool {
	state := tcp.EndpointState(c.ep.State())
	return state == tcp.StateEstablished || state == tcp.StateCloseWait
}

// giveUpLed ends a handshake without a packet.
func (s *Stack) giveUpLed(f *flow, cause error) {
	if s.bury(f, flowHandshake) {
		f.led.conn.ep.Abort() // its reset is swallowed
		s.ledOver(f, cause)
	}
}

// ledOver tells how a handshake has ended, once: what moves the flow on from it calls it.
func (s *Stack) ledOver(f *flow, err error) {
	l := f.led
	l.mu.Lock()
	l.over = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	defer s.release()
	if err != nil {
		l.done(nil, err)
		return
	}
	l.done(l.conn, nil)
}

// begin takes the measure of gVisor's own SYN, which the caller swallows: isn and stamp are
// what the wire has in its place, and scale what it was told of windows, if it and gVisor
// both shift them.
func (x *translation) begin(t packet.TCP, isn, stamp uint32, scale int8) {
	if x.ready.Load() {
		return // gVisor sends it again
	}
	o := packet.ParseTCPOptions(t.Options())
	x.seq, x.ts, x.synTS = isn-t.Seq(), stamp-o.TSVal, o.TSVal
	if scale >= 0 && o.WS >= 0 {
		x.wsNS, x.ws = uint8(o.WS), uint8(scale)
	}
	x.ready.Store(true)
}
