package rsocket

import "github.com/smcgw/smcgw/rmb"

// sendSide is the state of the peer's ring and our send queue.
type sendSide struct {
	sent, freed uint64 // bytes
	acked       uint64 // bytes whose sends have completed
	granted     uint64 // bytes the peer has granted in total

	messages      uint64 // data messages sent (sseq_no)
	limit         uint64 // messages the peer allows in total (sseq_comp)
	works         uint64 // send-queue entries used, control messages aside
	doneWorks     uint64 // works completed
	bytesUnsigned uint32 // bytes since the last signaled send
	sinceSignal   uint16 // works since the last signaled one
	signalEvery   uint16

	slot, slots uint8     // of our target list: the next entry to read, and the number of entries
	grants      fifo[SGE] // copies of the peer's unused grants, at most slots; the peer may rewrite its entries

	ring     SGE         // the peer's whole ring; only known between gateways
	ringNext rmb.Cursor  // where the next grant must begin
	ringAt   uint64      // bytes granted before ring
	before   *formerRing // the ring before it, or nil
	ends     endsLog     // where sent messages end; only kept between gateways

	direct *directSends // nil until the first direct write
}

// directSends counts the bytes of the buffer for direct writes.
type directSends struct {
	sent, freed uint64  // bytes: sent, completed
	ends        endsLog // value of sent as of each work
}

// Write is one RDMA WRITE to post, with immediate unless Bare.
type Write struct {
	// ID is the work request id; pass its completion to [Stream.Completed].
	ID uint64
	// Imm is the immediate.
	Imm Imm
	// RemoteAddr and RKey are the target. A zero-length write ignores them.
	RemoteAddr uint64
	RKey       uint32
	// Length is the number of bytes.
	Length int
	// Signaled asks for a completion.
	Signaled bool
	// Bare is a write without immediate: a keepalive or direct placement.
	Bare bool
}

func (d *sendSide) init(set *settings) {
	d.slots = uint8(len(set.targets) / sgeSize)
	// Entry 0 stands for the first grant, which came with the connection data, so grants start at entry 1.
	d.slot = 1 % d.slots
	d.signalEvery = max(1, (set.sendDepth-ControlSlots)/4)
}

func (d *sendSide) connect(set *settings, peer ConnData) {
	d.limit = uint64(peer.Credits)
	if set.dialect == Gateway {
		d.ring = peer.DataBuf
		d.ends = newEndsLog(int(peer.Credits))
	}
	d.push(peer.DataBuf)
}

func (d *sendSide) push(g SGE) {
	d.grants.push(g)
	d.granted += uint64(g.Length)
	if d.ring.Length != 0 {
		d.ringNext = d.ringNext.Add(d.ring.Length, g.Length)
	}
}

// Window returns how many bytes the next message may carry, or why none. They are contiguous in the peer's memory: a
// message never spans two grants.
func (s *Stream) Window() (int, Blocked) {
	d := &s.send
	switch {
	case !s.live() || !s.writable:
		return 0, BlockedClosed
	case d.grants.len == 0:
		return 0, BlockedGrant
	case d.messages == d.limit:
		return 0, BlockedCredit
	case s.queueFull():
		return 0, BlockedSQ
	case s.announcing():
		return 0, BlockedIOMap
	}
	return int(min(d.grants.oldest().Length, MaxRing)), NotBlocked
}

// queueFull reports that only the entries reserved for control messages are left in the send queue.
func (s *Stream) queueFull() bool {
	return int(s.send.works-s.send.doneWorks) >= int(s.set.sendDepth)-ControlSlots
}

// Target returns where in the peer's memory the next bytes go. It is valid only while Window is not zero.
func (s *Stream) Target() (addr uint64, key uint32) {
	g := s.send.grants.oldest()
	return g.Addr, g.Key
}

// Send records a message of n bytes and returns the write to post. If n exceeds [Stream.Window], the error is
// [ErrBlocked]; after the end of the direction it is [ErrState], or what broke the stream.
func (s *Stream) Send(n int) (Write, error) {
	window, why := s.Window()
	if s.err != nil {
		return Write{}, s.err
	}
	if why == BlockedClosed {
		return Write{}, ErrState
	}
	if n <= 0 || n > window {
		return Write{}, ErrBlocked
	}
	return s.record(n, false), nil
}

// record is Send for at most as many bytes as Window has just returned; signal forces a completion.
func (s *Stream) record(n int, signal bool) Write {
	d := &s.send
	g := d.grants.oldest()
	w := Write{Imm: MakeImm(OpData, uint32(n)), RemoteAddr: g.Addr, RKey: g.Key, Length: n}
	d.take(g, n)
	if d.ends.kept() {
		d.ends.put(d.messages-1, d.sent)
	}
	w.Signaled = d.signal(n, s.set.signalBytes, signal)
	w.ID = s.workID(workData)
	s.quiet = false
	return w
}

// take uses n bytes of the oldest grant.
func (d *sendSide) take(g *SGE, n int) {
	g.Addr += uint64(n)
	g.Length -= uint32(n)
	if g.Length == 0 {
		d.grants.drop()
	}
	d.sent += uint64(n)
	d.messages++
	d.work()
}

// work counts an entry of the send queue.
func (d *sendSide) work() {
	if d.direct != nil {
		d.direct.ends.put(d.works, d.direct.sent)
	}
	d.works++
}

// signal decides whether this send asks for a completion: at least once per quarter of the send queue, so that a full
// queue always has completions to wait for, and once per everyBytes where completions free the send buffer.
func (d *sendSide) signal(n int, everyBytes uint32, force bool) bool {
	d.sinceSignal++
	d.bytesUnsigned += uint32(n)
	if !force && d.sinceSignal < d.signalEvery && (everyBytes == 0 || d.bytesUnsigned < everyBytes) {
		return false
	}
	d.sinceSignal, d.bytesUnsigned = 0, 0
	return true
}

// handleSGL applies the credit limit and, if the length is 16 bytes, the next grant.
func (s *Stream) handleSGL(imm Imm, length uint32) error {
	if length != 0 && length != sgeSize {
		return s.violation(ViolationLength, imm, length)
	}
	if s.disconnected {
		return nil // it crossed our last message
	}
	if !s.raiseLimit(uint16(imm.Data())) {
		return s.violation(ViolationLimit, imm, length)
	}
	if length == sgeSize && !s.acceptGrant() {
		return s.violation(ViolationGrant, imm, length)
	}
	return nil
}

// raiseLimit extends the 16-bit limit to 64 bits and applies it. The peer has consumed limit minus credits messages, at
// most those that we sent. This bounds the step, so a limit that goes backwards cannot pass as a large step forward.
func (s *Stream) raiseLimit(limit uint16) bool {
	d := &s.send
	credits := uint64(s.peer.credits)
	step := uint64(limit - uint16(d.limit))
	if d.limit+step > d.messages+credits {
		return false
	}
	if step == 0 {
		return true
	}
	d.limit += step
	if consumed := d.limit - credits; d.ends.kept() && consumed > 0 {
		if more := d.ends.after(consumed-1, d.freed); more > 0 {
			d.freed += uint64(more)
		}
	}
	return true
}

// acceptGrant reads the next entry of our target list, once, and checks it.
func (s *Stream) acceptGrant() bool {
	d := &s.send
	if d.grants.len == uint32(d.slots) {
		return false
	}
	g := readGrant(s.set.targets[int(d.slot)*sgeSize:][:sgeSize], s.bigEndian)
	if g.Length == 0 || g.overflows() {
		return false
	}
	continues := d.ring.Length == 0 || d.inOrder(g)
	if !continues && (!s.set.rings || !s.peer.rings || !d.otherRing(g)) {
		return false
	}
	d.slot = (d.slot + 1) % d.slots
	d.push(g)
	if continues { // a grant of another ring tells nothing about consumption
		d.freeGranted()
	}
	return true
}

// inOrder reports whether a gateway's grant continues its ring where the previous grant ended, and does not free more
// than we sent.
func (d *sendSide) inOrder(g SGE) bool {
	return g.Key == d.ring.Key &&
		g.Addr == d.ring.Addr+uint64(d.ringNext.Count) &&
		uint64(g.Length) <= uint64(d.ring.Length-d.ringNext.Count) &&
		d.granted+uint64(g.Length) <= d.sent+uint64(d.ring.Length)
}

// freeGranted frees what the peer must have consumed to be able to grant this much: all granted bytes but the last
// ring's worth.
func (d *sendSide) freeGranted() {
	if size := uint64(d.ring.Length); size != 0 && d.granted-size > d.freed {
		d.freed = d.granted - size
	}
}

// retire records that all sends up to the one with this work id have completed. A queue pair completes sends in order.
func (s *Stream) retire(id uint64) {
	d := &s.send
	d.doneWorks = min(d.works, d.doneWorks+uint64(workNumber(id)-uint16(d.doneWorks)))
	d.acked = min(d.sent, d.acked+uint64(workOffset(id)-uint32(d.acked)))
	if s.set.dialect == Stock {
		d.freed = d.acked
	}
	if direct := d.direct; direct != nil && d.doneWorks > 0 {
		if more := direct.ends.after(d.doneWorks-1, direct.freed); more > 0 {
			direct.freed += uint64(more)
		}
	}
}
