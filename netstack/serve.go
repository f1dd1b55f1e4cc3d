package netstack

import (
	"errors"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/internal/paws"

	"github.com/smcgw/smcgw/packet"
)

// wakeAgain is how often a handshake that was given up is told so: its endpoint
// may not be there yet, or have no room for a segment.
const wakeAgain = 20 * time.Millisecond

// noteSYNACK remembers the SYN-ACK q that leaves.
func (v *serving) noteSYNACK(iss uint32, q *stack.PacketBuffer, now tcpip.MonotonicTime) {
	view := q.ToView()
	defer view.Release()
	v.mu.Lock()
	v.synack = append([]byte(nil), view.AsSlice()...)
	v.sentAt = now
	v.mu.Unlock()
	v.iss.Store(iss)
	v.sent.Store(true)
}

// repeat returns the SYN-ACK to send again.
func (v *serving) repeat(now tcpip.MonotonicTime) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sentAt = now
	return v.synack
}

// acceptable checks a segment before the handshake is complete. Without a listening
// endpoint gVisor does not compare the acknowledgement with its SYN-ACK, so that any
// host could complete a handshake from a false address.
func (v *serving) acceptable(isn uint32, t packet.TCP) bool {
	flags := t.Flags()
	if !v.sent.Load() {
		return false
	}
	if flags&packet.FlagRST != 0 {
		return t.Seq() == isn+1
	}
	return flags&packet.FlagACK != 0 && t.Ack() == v.iss.Load()+1
}

// offered handles a SYN with an offer that belongs to no live flow as it is. old
// is the flow of its tuple, if any.
func (s *Stack) offered(k tupleKey, old *flow, syn SYN, o packet.TCPOptions) {
	if s.flows.full(s.cfg.Limits) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, ErrOverload)
		return
	}
	if !s.cfg.Handler.OfferedSYN(syn) || !s.hold() {
		return
	}
	f, g := s.newServerFlow(k, syn, syn.Raw, o), &grown{}
	if f.grow(g); o.TS {
		g.stamps.Begin(paws.Recent{Value: o.TSVal, At: sinceStart(s.clock)})
	}
	if done := s.replace(old); done != nil {
		go s.handshakeAfter(done, f, syn, syn.Raw) // bounded by the flows that are half open
		return
	}
	s.handshake(f, syn, syn.Raw)
}

func (s *Stack) newServerFlow(k tupleKey, syn SYN, raw []byte, o packet.TCPOptions) *flow {
	syn.Raw = nil
	f := &flow{
		key: k, server: true, isn: syn.ISN, nonce: syn.Nonce, wq: &waiter.Queue{},
		serve: &serving{syn: syn, done: make(chan struct{})},
	}
	f.awaited.Store(syn.ISN + 1)
	f.segMax.Store(s.segMax(raw, o.PeerMSS()))
	return f
}

// replace ends the flow in the way of a new one on its tuple. The channel is
// closed when gVisor has let go of it; nil: it has.
func (s *Stack) replace(old *flow) <-chan struct{} {
	if old == nil || !old.server {
		return nil
	}
	if c := old.conn.Load(); c != nil {
		c.Forget()
	}
	s.giveUp(old, ErrReplaced)
	select {
	case <-old.serve.done:
	default:
		return old.serve.done
	}
	return old.stillThere()
}

// stillThere returns what is closed when gVisor has let go of a connection that is being
// ended; nil: it has. A reset leaves before that, and a client that has waited for it
// may begin anew at once.
func (f *flow) stillThere() <-chan struct{} {
	left := f.leaving.Load()
	if left == nil {
		return nil
	}
	select {
	case <-*left:
		return nil
	default:
		return *left
	}
}

func (s *Stack) handshakeAfter(done <-chan struct{}, f *flow, syn SYN, raw []byte) {
	<-done
	s.handshake(f, syn, raw)
}

// handshake starts gVisor's handshake for f with the SYN raw. The caller holds the stack
// (Stack.hold), which the end of the handshake releases.
func (s *Stack) handshake(f *flow, syn SYN, raw []byte) {
	if err := s.flows.put(f, s.cfg.Limits); err != nil {
		defer s.release()
		f.state.Store(flowDead)
		s.notBegun(f, syn, err)
		return
	}
	f.serve.mu.Lock()
	f.serve.timer = s.clock.AfterFunc(s.cfg.HandshakeTimeout, func() { s.giveUp(f, ErrHandshakeTimeout) })
	f.serve.mu.Unlock()
	s.starting.Store(f.key, f)
	s.inject(raw)
	if !f.serve.claimed { // gVisor refused the packet
		s.starting.Delete(f.key)
		s.bury(f, flowHandshake)
		defer s.release()
		s.handshakeOver(f, nil, mapError(&tcpip.ErrMalformedHeader{}))
	}
}

// notBegun tells of a handshake that there is no room for, unless it is under way.
func (s *Stack) notBegun(f *flow, syn SYN, err error) {
	close(f.serve.done)
	if !errors.Is(err, errRepeated) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, err)
	}
}

// forward is gVisor's handler for segments without an endpoint. SYNs that start
// a handshake come here out of Stack.inject, synchronously; the forwarder then
// starts the goroutine of passive, which ends the handshake in any case.
func (s *Stack) forward(fw *tcp.Forwarder) func(stack.TransportEndpointID, *stack.PacketBuffer) bool {
	return func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
		if packet.TCP(pkt.TransportHeader().Slice()).Flags()&(packet.FlagSYN|packet.FlagACK) != packet.FlagSYN {
			return false // a reset is the right answer
		}
		v, ok := s.starting.Load(endpointKey(id))
		if !ok {
			return true // a SYN on a leg whose endpoint has just gone
		}
		v.(*flow).serve.claimed = fw.HandlePacket(id, pkt)
		return true
	}
}

// passive runs gVisor's handshake, on a goroutine of the forwarder.
func (s *Stack) passive(r *tcp.ForwarderRequest) {
	v, ok := s.starting.LoadAndDelete(endpointKey(r.ID()))
	if !ok { // cannot be: see forward
		r.Complete(false)
		return
	}
	defer s.release()
	f := v.(*flow)
	ep, err := r.CreateEndpoint(f.wq)
	r.Complete(false)
	var c *Conn
	if err == nil {
		c = s.established(f, ep)
	} else {
		s.bury(f, flowHandshake)
	}
	s.handshakeOver(f, c, mapError(err))
}

// established makes the connection of a complete handshake; nil if it was given
// up meanwhile.
func (s *Stack) established(f *flow, ep tcpip.Endpoint) *Conn {
	c := newConn(s, f, ep)
	f.serve.mu.Lock()
	c.synRTT = s.clock.NowMonotonic().Sub(f.serve.sentAt)
	f.serve.mu.Unlock()
	f.conn.Store(c)
	if f.state.CompareAndSwap(flowHandshake, flowOpen) {
		return c
	}
	f.conn.Store(nil)
	ep.Abort() // its reset is swallowed: the flow is dead
	return nil
}

// handshakeOver does the accounts and tells the owner.
func (s *Stack) handshakeOver(f *flow, c *Conn, err error) {
	v := f.serve
	v.mu.Lock()
	if v.timer != nil {
		v.timer.Stop()
	}
	v.synack = nil
	cause := v.cause
	v.mu.Unlock()
	s.flows.handshakeOver()
	close(v.done)
	if c != nil {
		s.count.accepted.Add(1)
		s.cfg.Handler.Accepted(c)
		return
	}
	if cause == nil {
		cause = err
	}
	if cause == nil {
		cause = errAborted
	}
	s.count.handshakeFailed.Add(1)
	s.cfg.Handler.NotAccepted(v.syn, cause)
}

// errAborted is why a handshake has come to nothing that was not given up.
var errAborted = errors.New("handshake aborted")

// giveUp ends a handshake without a packet. None of gVisor's locks may be held.
func (s *Stack) giveUp(f *flow, cause error) {
	if !f.server {
		return // it has no handshake
	}
	v := f.serve
	v.mu.Lock()
	if v.cause == nil {
		v.cause = cause
	}
	v.mu.Unlock()
	if s.bury(f, flowHandshake) {
		s.wake(f)
	}
}

// wake makes gVisor let go of a handshake that was given up: as if the client
// had reset it. The goroutine in CreateEndpoint would otherwise wait for 127 s
// (the handshake's retransmission timer is not configurable).
//
// Notifying its queue makes it return too, but gVisor then drops the state of the
// handshake before it closes the endpoint, and panics on a segment that is
// processed in between. That is for endpoints no segment can be under way to:
// those that have not sent a SYN-ACK, and those that a reset does not end in a
// second.
func (s *Stack) wake(f *flow) { s.wakeAfter(f, 0) }

func (s *Stack) wakeAfter(f *flow, resets int) {
	select {
	case <-f.serve.done:
		return
	default:
	}
	if reset := f.serve.reset(); reset != nil && resets < int(time.Second/wakeAgain) {
		s.inject(reset)
	} else {
		f.wq.Notify(waiter.WritableEvents)
	}
	time.AfterFunc(wakeAgain, func() { s.wakeAfter(f, resets+1) })
}

// reset makes the client's reset of the SYN-ACK; nil if that was not sent yet.
func (v *serving) reset() []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, t, ok := parseTCP(v.synack)
	if !ok {
		return nil
	}
	p := buildReset(n, t)
	defer p.DecRef()
	view := p.ToView()
	defer view.Release()
	return append([]byte(nil), view.AsSlice()...)
}
