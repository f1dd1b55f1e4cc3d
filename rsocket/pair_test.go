package rsocket

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// side is one end of a simulated connection: a stream, the memory its peer can write to, and three queues in order:
// what it posted, what arrived and was not polled yet, and which of its sends completed and were not polled yet.
type side struct {
	*Stream
	cfg        Config // of it
	t          require.TestingT
	name       string
	peer       *side
	posted     []packet
	arrived    []packet
	completed  []uint64
	maxPending int

	others   map[uint32]otherRing // beside the first, by key
	live     int                  // bytes of all rings
	retired  bool                 // the first one
	rings    uint32               // ever used
	replaced uint32               // key of the ring before the last exchange

	sent     bytes.Buffer // what was sent and not yet consumed by the peer
	nextByte byte
	events   Events
}

// packet is a posted write; bytes are as they were when posted.
type packet struct {
	Write
	payload []byte
}

const (
	ringBase    = 0x7f0000b00000
	targetsBase = 0x7f0000a03000
	ringKey     = 0x1002
	targetsKey  = 0x1001
)

func memory(cfg Config, ring, targets int) Config {
	cfg.Ring, cfg.RingAddr, cfg.RingKey = make([]byte, ring), ringBase, ringKey
	cfg.Targets, cfg.TargetsAddr, cfg.TargetsKey = make([]byte, targets*sgeSize), targetsBase, targetsKey
	return cfg
}

// newPair connects two streams. The second may be of the other byte order.
func newPair(t require.TestingT, a, b Config, bigA, bigB bool) (*side, *side) {
	sides := [2]*side{}
	for i, cfg := range []Config{a, b} {
		s, err := NewStream(cfg)
		require.NoError(t, err)
		s.bigEndian = [2]bool{bigA, bigB}[i]
		sides[i] = &side{
			Stream: s, cfg: cfg.withDefaults(), t: t, name: fmt.Sprint("side ", i), nextByte: byte(i * 100),
			others: map[uint32]otherRing{}, live: len(cfg.Ring),
		}
	}
	sides[0].peer, sides[1].peer = sides[1], sides[0]
	for _, s := range sides {
		data, err := ParseConnData(s.peer.ConnData().Append(nil))
		require.NoError(t, err)
		require.NoError(t, s.Connect(data))
	}
	for _, s := range sides {
		s.control()
	}
	return sides[0], sides[1]
}

// write sends up to n bytes and returns how many.
func (s *side) write(n int) int {
	window, _ := s.Window()
	n = min(n, window)
	if n == 0 {
		return 0
	}
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = s.nextByte
		s.nextByte++
	}
	addr, key := s.Target()
	w, err := s.Send(n)
	s.must(err == nil && addr == w.RemoteAddr && key == w.RKey, "sent %+v to %#x, key %#x: %v", w, addr, key, err)
	s.sent.Write(payload)
	s.post(w, payload)
	return n
}

// must is for what is asked hundreds of thousands of times: a require that holds
// costs a walk of the stack.
func (s *side) must(ok bool, format string, args ...any) {
	if !ok {
		require.FailNow(s.t, s.name+": "+fmt.Sprintf(format, args...))
	}
}

func (s *side) post(w Write, payload []byte) {
	s.must(len(payload) == w.Length, "%d bytes in a write of %d", len(payload), w.Length)
	s.posted = append(s.posted, packet{Write: w, payload: bytes.Clone(payload)})
}

// control posts all control messages that are due.
func (s *side) control() {
	for {
		c, ok := s.NextControl()
		s.retire()
		if !ok {
			return
		}
		s.must(c.Signaled, "control message without a completion")
		s.post(c.Write, c.Payload[:c.Length])
	}
}

// rest returns credits early, as an owner does whose peer has handled what it was sent.
func (s *side) rest() {
	if len(s.peer.arrived) == 0 {
		s.ReturnCredits()
		s.control()
	}
}

// transfer moves the oldest posted write into the peer's memory and completion queue, as a queue pair does.
func (s *side) transfer() bool {
	if len(s.posted) == 0 {
		return false
	}
	p := s.posted[0]
	s.posted = s.posted[1:]
	if p.Length > 0 {
		copy(s.peer.find(p.RemoteAddr, p.RKey, p.Length), p.payload)
	}
	if !p.Bare {
		s.peer.arrived = append(s.peer.arrived, p)
		s.peer.maxPending = max(s.peer.maxPending, len(s.peer.arrived))
	}
	if p.Signaled {
		s.completed = append(s.completed, p.ID)
	}
	return true
}

// otherRing is memory that took the place of the first ring.
type otherRing struct {
	buf  []byte
	addr uint64
}

// switchRing exchanges the ring for one of n bytes, if that is possible now.
func (s *side) switchRing(n int) {
	if !s.CanSwitchRing() {
		return
	}
	s.rings++
	r := otherRing{make([]byte, n), ringBase + uint64(s.rings)<<32}
	key := ringKey + 1 + s.rings
	s.others[key] = r
	s.live += n
	before := s.recv.key
	s.must(s.SwitchRing(r.buf, r.addr, key) == nil, "switch of the ring")
	s.must(s.RingSize() == n, "size of the ring")
	s.replaced = before
	s.control()
}

// retire takes the memory away that an exchange has left over.
func (s *side) retire() {
	if !s.RingRetired() {
		return
	}
	old, ok := s.others[s.replaced]
	if !ok {
		old.buf, s.retired = s.cfg.Ring, true
	}
	delete(s.others, s.replaced)
	s.live -= len(old.buf)
	for i := range old.buf {
		old.buf[i] = 0xee
	}
}

// find resolves a remote address as the device does.
func (s *side) find(addr uint64, key uint32, n int) []byte {
	mem, base := s.cfg.Ring, s.cfg.RingAddr
	if key == s.cfg.TargetsKey {
		mem, base = s.cfg.Targets, s.cfg.TargetsAddr
	} else if r, ok := s.others[key]; ok {
		mem, base = r.buf, r.addr
	} else {
		s.must(key == s.cfg.RingKey && !s.retired, "key %#x", key)
	}
	s.must(addr >= base && addr+uint64(n) <= base+uint64(len(mem)), "%d bytes at %#x are beyond the region", n, addr)
	return mem[addr-base:][:n]
}

// receive handles the oldest arrived message.
func (s *side) receive() bool {
	if len(s.arrived) == 0 {
		return false
	}
	p := s.arrived[0]
	s.arrived = s.arrived[1:]
	ev, err := s.Receive(p.Imm, uint32(p.Length))
	s.must(err == nil, "%s: %v", p.Imm, err)
	s.events |= ev
	s.control()
	return true
}

// complete handles the oldest send completion.
func (s *side) complete() bool {
	if len(s.completed) == 0 {
		return false
	}
	s.events |= s.Completed(s.completed[0])
	s.completed = s.completed[1:]
	s.control()
	return true
}

// read consumes up to n bytes and checks them.
func (s *side) read(n int) int {
	span := s.ReadSpan()
	n = min(n, len(span))
	if n == 0 {
		return 0
	}
	want := s.peer.sent.Next(n)
	s.must(bytes.Equal(want, span[:n]), "wrong bytes at offset %d", s.ConsumedOffset())
	err := s.Consume(n)
	s.must(err == nil, "consume: %v", err)
	s.retire()
	s.control()
	return n
}

// settle moves everything until nothing moves any more.
func settle(sides ...*side) {
	for moved := true; moved; {
		moved = false
		for _, s := range sides {
			moved = s.transfer() || moved
			moved = s.receive() || moved
			moved = s.complete() || moved
			moved = s.read(1<<20) > 0 || moved
		}
	}
}
