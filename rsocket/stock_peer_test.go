package rsocket

import (
	"encoding/binary"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// States of a stock rsocket (enum rs_state).
const (
	rsReadable     = 0x0400
	rsWritable     = 0x0200
	rsConnected    = 0x0100
	rsDisconnected = 0x1000
	rsError        = 0x2000
	rsRDWR         = rsReadable | rsWritable | rsConnected
)

// stockPeer is rdma-core's rsocket (librdmacm/rsocket.c) as a model: the same variables with the same widths, the same
// predicates, the same messages, on a fake queue pair. Its calls do not block; what would wait is tried again by step.
type stockPeer struct {
	t       require.TestingT
	qp      *fakeQP
	big     bool // byte order of this machine
	swap    bool // RS_OPT_SWAP_SGL
	state   int
	started bool

	list, rbuf         verbs.MR // target_buffer_list, receive ring
	sqSize, rqSize     uint16
	sseqNo, sseqComp   uint16
	rseqNo, rseqComp   uint16
	ctrlSeq, ctrlMax   uint16
	sqeAvail           int
	rbufAvail          int
	rbufFree, rbufOff  int
	sbufSize, sbufLeft int
	targetSGE          int
	remoteSGE          int
	remoteSGL          SGE
	remoteIOMap        SGE // Length counts slots
	iomapSize          int
	rmsgs              []uint32
	announce           []stockMap // iomap_queue
	mapped             []bool     // slots of the peer in use
	wait               []uint32   // control codes that wait for a slot

	nextOut, nextIn byte
	sent, received  uint64
	wrote           map[uint64]byte // direct placement: what was written last
	resets          int             // calls that returned ECONNRESET
}

type stockMap struct {
	m     IOMapping
	index int
}

const (
	stockRecvID = 1 << 63
	stockLow    = 2048  // RS_SNDLOWAT
	stockOLAP   = 2048  // RS_OLAP_START_SIZE
	stockMax    = 65536 // RS_MAX_TRANSFER
)

type stockConfig struct {
	big            bool
	sq, rq         int
	rbuf, sbuf     int
	iomapSlots     int
	firstByte      byte
	expectsFirstAt byte
}

func newStockPeer(t require.TestingT, qp *fakeQP, cfg stockConfig) *stockPeer {
	s := &stockPeer{
		t: t, qp: qp, big: cfg.big, sqSize: uint16(cfg.sq), rqSize: uint16(cfg.rq), sbufSize: cfg.sbuf,
		sbufLeft: cfg.sbuf, sqeAvail: cfg.sq - ControlSlots, ctrlMax: ControlSlots, rseqComp: uint16(cfg.rq / 2),
		rbufAvail: cfg.rbuf / 2, rbufFree: cfg.rbuf / 2, iomapSize: cfg.iomapSlots,
		nextOut: cfg.firstByte, nextIn: cfg.expectsFirstAt, wrote: map[uint64]byte{},
	}
	s.list, _ = qp.net.AllocMR(StockTargets*sgeSize+cfg.iomapSlots*iomapSize, 0)
	s.rbuf, _ = qp.net.AllocMR(cfg.rbuf, 0)
	for range cfg.rq { // rs_create_ep
		require.NoError(t, qp.PostRecv(&verbs.RecvWR{WRID: stockRecvID}))
	}
	return s
}

// connData is rs_format_conn_data.
func (s *stockPeer) connData() ConnData {
	return ConnData{
		BigEndian: s.big, Iomap: true, Credits: s.rqSize, IomapSlots: uint16(s.iomapSize),
		TargetSGL: SGE{Addr: s.list.Addr(), Key: s.list.RKey(), Length: StockTargets},
		DataBuf:   SGE{Addr: s.rbuf.Addr(), Key: s.rbuf.RKey(), Length: uint32(len(s.rbuf.Bytes()) / 2)},
	}
}

// connect is rs_save_conn_data.
func (s *stockPeer) connect(d ConnData) {
	s.remoteSGL, s.remoteSGE = d.TargetSGL, 1
	s.swap = d.BigEndian != s.big
	if d.Iomap {
		s.remoteIOMap = SGE{Addr: d.TargetSGL.Addr + sgeSize*uint64(d.TargetSGL.Length), Key: d.TargetSGL.Key, Length: uint32(d.IomapSlots)}
		s.mapped = make([]bool, d.IomapSlots)
	}
	s.setTarget(0, d.DataBuf)
	s.sseqComp = d.Credits
	s.state, s.started = rsRDWR, true
}

func (s *stockPeer) order() binary.ByteOrder { return order(s.big) }

func order(big bool) binary.ByteOrder {
	if big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// target reads an entry of the own list where it lies, as the original does.
func (s *stockPeer) target(i int) SGE {
	b := s.list.Bytes()[i*sgeSize:]
	return SGE{Addr: s.order().Uint64(b), Key: s.order().Uint32(b[8:]), Length: s.order().Uint32(b[12:])}
}

func (s *stockPeer) setTarget(i int, g SGE) {
	b := s.list.Bytes()[i*sgeSize:]
	s.order().PutUint64(b, g.Addr)
	s.order().PutUint32(b[8:], g.Key)
	s.order().PutUint32(b[12:], g.Length)
}

// sgeBytes is an rs_sge for the peer's list: in this machine's order, or swapped.
func (s *stockPeer) sgeBytes(g SGE) []byte {
	o := order(s.big != s.swap)
	b := make([]byte, sgeSize)
	o.PutUint64(b, g.Addr)
	o.PutUint32(b[8:], g.Key)
	o.PutUint32(b[12:], g.Length)
	return b
}

func (s *stockPeer) canSend() bool {
	return s.sqeAvail >= 1 && s.sbufLeft >= stockLow && s.sseqNo != s.sseqComp && s.target(s.targetSGE).Length != 0
}

func (s *stockPeer) ctrlAvail() bool { return s.ctrlSeq != s.ctrlMax }

func (s *stockPeer) post(imm Imm, bare bool, addr uint64, key uint32, payload []byte) {
	wr := verbs.SendWR{
		WRID: uint64(imm), Opcode: verbs.WRRDMAWriteWithImm, ImmData: uint32(imm), RemoteAddr: addr, RKey: key,
		Flags: verbs.SendSignaled | verbs.SendInline, Inline: payload,
	}
	if bare {
		wr.Opcode, wr.ImmData = verbs.WRRDMAWrite, 0
	}
	if err := s.qp.PostSend(&wr); err != nil && s.state&rsConnected != 0 {
		require.ErrorIs(s.t, err, verbs.ErrState)
		s.state = rsError
	}
}

// updateCredits is rs_update_credits with rs_give_credits and rs_send_credits.
func (s *stockPeer) updateCredits() {
	half := len(s.rbuf.Bytes()) / 2
	if s.rbufAvail < half && int16(s.rseqNo-s.rseqComp) < 0 || !s.ctrlAvail() || s.state&rsConnected == 0 {
		return
	}
	s.ctrlSeq++
	s.rseqComp = s.rseqNo + s.rqSize/2
	imm := MakeImm(OpSGL, uint32(s.rseqNo+s.rqSize))
	if s.rbufAvail < half {
		s.post(imm, false, 0xdeadbeef, 0xbad, nil) // a zero-length write means no memory
		return
	}
	grant := s.sgeBytes(SGE{Addr: s.rbuf.Addr() + uint64(s.rbufFree), Key: s.rbuf.RKey(), Length: uint32(half)})
	s.post(imm, false, s.remoteSGL.Addr+uint64(s.remoteSGE)*sgeSize, s.remoteSGL.Key, grant)
	s.rbufAvail -= half
	if s.rbufFree += half; s.rbufFree >= len(s.rbuf.Bytes()) {
		s.rbufFree = 0
	}
	if s.remoteSGE++; s.remoteSGE == int(s.remoteSGL.Length) {
		s.remoteSGE = 0
	}
}

// processCQ is rs_process_cq without blocking: at most n completions.
func (s *stockPeer) processCQ(n int) (any bool) {
	if !s.started {
		return false
	}
	s.updateCredits()
	received := 0
	for ; n > 0; n-- {
		wc, ok := s.qp.poll()
		if !ok {
			break
		}
		any = true
		if wc.WRID&stockRecvID == 0 {
			s.sendCompletion(&wc)
			continue
		}
		if wc.Status != verbs.WCSuccess {
			continue
		}
		received++
		if s.message(Imm(wc.ImmData)) {
			break
		}
	}
	for ; received > 0 && s.state&rsConnected != 0; received-- {
		if s.qp.PostRecv(&verbs.RecvWR{WRID: stockRecvID}) != nil {
			s.state = rsError
		}
	}
	s.updateCredits()
	return any
}

// message handles a received immediate and reports whether polling stops.
func (s *stockPeer) message(imm Imm) (stop bool) {
	switch {
	case imm.Op() == OpSGL:
		s.sseqComp = uint16(imm.Data())
	case imm.Op() == OpIomapSGL: // "the iomap was updated, that's nice to know"
	case imm == MakeImm(OpCtrl, CtrlDisconnect):
		s.state = rsDisconnected
		return true
	case imm == MakeImm(OpCtrl, CtrlShutdown):
		if s.state&rsWritable == 0 {
			s.state = rsDisconnected
			return true
		}
		s.state &^= rsReadable
	case imm.Op() == OpData:
		s.rmsgs = append(s.rmsgs, imm.Data())
		require.LessOrEqual(s.t, len(s.rmsgs), int(s.rqSize), "more messages than the ring of messages holds")
	default:
		require.Fail(s.t, "stock peers do not know this", "%s", imm)
	}
	return false
}

func (s *stockPeer) sendCompletion(wc *verbs.WC) {
	imm := Imm(wc.WRID)
	switch imm.Op() {
	case OpSGL:
		s.ctrlMax++
	case OpCtrl:
		s.ctrlMax++
		if imm.Data() == CtrlDisconnect {
			s.state = rsDisconnected
		}
	case OpIomapSGL:
		s.sqeAvail++
		s.sbufLeft += iomapSize
	default:
		s.sqeAvail++
		s.sbufLeft += int(imm.Data())
	}
	if wc.Status != verbs.WCSuccess && s.state&rsConnected != 0 {
		s.state = rsError
	}
}

// step retries what blocks in the original.
func (s *stockPeer) step() bool {
	moved := s.processCQ(1 << 20)
	return s.postWaiting() || moved
}

// send is rsend with MSG_DONTWAIT.
func (s *stockPeer) send(n int) (sent int) {
	s.processCQ(1)
	if !s.sendMaps() {
		return 0
	}
	for olen := stockOLAP; sent < n; {
		if s.state&rsWritable == 0 {
			s.resets++
			return sent
		}
		if !s.canSend() {
			return sent
		}
		chunk := n - sent
		if olen < chunk {
			chunk = olen
			olen = min(2*olen, stockMax)
		}
		g := s.target(s.targetSGE)
		chunk = min(chunk, s.sbufLeft, int(g.Length))
		payload := make([]byte, chunk)
		for i := range payload {
			payload[i] = s.nextOut
			s.nextOut++
		}
		s.sseqNo++
		s.sqeAvail--
		s.sbufLeft -= chunk
		addr := g.Addr
		g.Addr += uint64(chunk)
		g.Length -= uint32(chunk)
		s.setTarget(s.targetSGE, g)
		if g.Length == 0 {
			s.targetSGE = 1 - s.targetSGE
		}
		s.post(MakeImm(OpData, uint32(chunk)), false, addr, g.Key, payload)
		sent += chunk
		s.sent += uint64(chunk)
	}
	return sent
}

// recv is rrecv with MSG_DONTWAIT.
func (s *stockPeer) recv(n int) (read int) {
	if len(s.rmsgs) == 0 {
		s.processCQ(1 << 20)
	}
	for read < n && len(s.rmsgs) > 0 {
		size := min(n-read, int(s.rmsgs[0]))
		if s.rmsgs[0] -= uint32(size); s.rmsgs[0] == 0 {
			s.rmsgs = s.rmsgs[1:]
			s.rseqNo++
		}
		for range size {
			if got := s.rbuf.Bytes()[s.rbufOff]; got != s.nextIn {
				require.Equal(s.t, s.nextIn, got, "wrong byte at %d", s.received)
			}
			s.nextIn++
			s.received++
			if s.rbufOff++; s.rbufOff == len(s.rbuf.Bytes()) {
				s.rbufOff = 0
			}
		}
		s.rbufAvail += size
		read += size
	}
	return read
}

// shutdown is rshutdown: read and write say which directions.
func (s *stockPeer) shutdown(read, write bool) {
	if s.state&rsConnected == 0 {
		return
	}
	ctrl := CtrlDisconnect
	switch {
	case read && write:
		s.state &^= rsReadable | rsWritable
	case write:
		s.state &^= rsWritable
		if s.state&rsReadable != 0 {
			ctrl = CtrlShutdown
		}
	default:
		s.state &^= rsReadable
		if s.state&rsWritable != 0 {
			return
		}
	}
	s.wait = append(s.wait, ctrl)
	s.postWaiting()
}

// postWaiting posts control messages that have a slot. One that waits for a slot is never sent when the other side's
// SHUTDOWN comes first: the peer then hears of the end by the queue pair alone.
func (s *stockPeer) postWaiting() (any bool) {
	for len(s.wait) > 0 && s.state&rsConnected != 0 && s.ctrlAvail() {
		s.ctrlSeq++
		s.post(MakeImm(OpCtrl, s.wait[0]), false, 0, 0, nil)
		s.wait = s.wait[1:]
		any = true
	}
	return any
}

// mapMemory is riomap.
func (s *stockPeer) mapMemory(m IOMapping) bool {
	for i, used := range s.mapped {
		if !used {
			s.mapped[i] = true
			s.announce = append(s.announce, stockMap{m, i})
			return true
		}
	}
	return false // ENOMEM
}

// sendMaps is rs_send_iomaps.
func (s *stockPeer) sendMaps() bool {
	for len(s.announce) > 0 {
		if s.state&rsWritable == 0 || !s.canSend() {
			return false
		}
		e := s.announce[0]
		s.announce = s.announce[1:]
		payload := make([]byte, 8, iomapSize)
		order(s.big != s.swap).PutUint64(payload, e.m.Offset)
		payload = append(payload, s.sgeBytes(e.m.Region)...)
		s.sseqNo++
		s.sqeAvail--
		s.sbufLeft -= iomapSize
		s.post(MakeImm(OpIomapSGL, uint32(e.index)), false, s.remoteIOMap.Addr+uint64(e.index)*iomapSize, s.remoteIOMap.Key, payload)
	}
	return true
}

// find is rs_find_iomap: the list as it lies in memory.
func (s *stockPeer) find(offset uint64) (SGE, bool) {
	for i := range s.iomapSize {
		b := s.list.Bytes()[StockTargets*sgeSize+i*iomapSize:]
		o := s.order()
		m := IOMapping{Offset: o.Uint64(b), Region: SGE{Addr: o.Uint64(b[8:]), Key: o.Uint32(b[16:]), Length: o.Uint32(b[20:])}}
		if n := m.covers(offset); n > 0 {
			return SGE{Addr: m.Region.Addr + offset - m.Offset, Key: m.Region.Key, Length: uint32(n)}, true
		}
	}
	return SGE{}, false
}

// writeDirect is riowrite with MSG_DONTWAIT.
func (s *stockPeer) writeDirect(p []byte, offset uint64) (sent int) {
	s.processCQ(1)
	if !s.sendMaps() {
		return 0
	}
	for olen := stockOLAP; sent < len(p); {
		to, ok := s.find(offset + uint64(sent))
		if !ok || s.state&rsWritable == 0 || !s.canSend() {
			return sent
		}
		chunk := min(len(p)-sent, olen, s.sbufLeft, int(to.Length))
		olen = min(2*olen, stockMax)
		s.sqeAvail--
		s.sbufLeft -= chunk
		s.post(MakeImm(2, uint32(chunk)), true, to.Addr, to.Key, p[sent:sent+chunk])
		for i := range chunk {
			s.wrote[offset+uint64(sent+i)] = p[sent+i]
		}
		sent += chunk
	}
	return sent
}
