package soft

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// script is fuzz input read as a program. Beyond its end it is zeros.
type script struct{ b []byte }

func (s *script) end() bool { return len(s.b) == 0 }

func (s *script) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

func (s *script) uint(n int) (v uint64) {
	for range n {
		v = v<<8 | uint64(s.byte())
	}
	return v
}

// hostileSteps bounds a script; stepLen is the size of a step, so that a fuzzer
// can change one without changing the meaning of those after it.
const (
	hostileSteps = 64
	stepLen      = 12
)

// step takes the next step of a script.
func (s *script) step() *script {
	n := min(stepLen, len(s.b))
	step := &script{s.b[:n:n]}
	s.b = s.b[n:]
	return step
}

// play does what a script says: packets of the hostile peer, work of the
// device, time.
func (h *hostile) play(b []byte) {
	all := &script{b: b}
	for steps := 0; !all.end() && steps < hostileSteps; steps++ {
		s := all.step()
		switch c := s.byte(); c % 8 {
		case 0:
			h.raw(s, all)
		case 1:
			h.work(s)
		case 2:
			h.m.w.run(time.Duration(s.byte())*time.Duration(s.byte())*time.Microsecond, nil)
		case 3:
			h.receive(s)
		case 4:
			h.modify(s)
		default:
			h.packet(s)
		}
		h.m.w.run(20*time.Microsecond, nil)
		for _, q := range h.qps {
			checkInvariants(h.t, q.QP)
		}
	}
	h.m.w.run(time.Second, nil)
}

// raw sends bytes as they are, or with an ICRC that fits.
func (h *hostile) raw(s, all *script) {
	c := s.byte()
	from, port := h.source(c)
	n := min(int(s.uint(1)), len(all.b))
	data := bytes.Clone(all.b[:n])
	all.b = all.b[n:]
	if c&0x80 != 0 {
		data = h.sum(from, port, data, wire.BTHLen, false)
	}
	h.send(from, port, data)
}

// source chooses where a packet seems to come from. It is never the victim's
// peer: a host that can forge that address is the peer as far as RoCEv2 goes.
func (h *hostile) source(c byte) (netip.Addr, uint16) {
	if c&7 == 7 {
		return strangerAddr, 0xc001
	}
	return hostileAddr, 0xc000 | uint16(c>>3&3)
}

// opcodes are those that make sense, and some that do not.
var hostileOpcodes = []wire.Opcode{
	wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
	wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm, wire.RCWriteOnly, wire.RCWriteOnlyImm,
	wire.RCReadRequest, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast,
	wire.RCReadResponseOnly, wire.RCAcknowledge, wire.RCAtomicAcknowledge, wire.RCCompareSwap, wire.RCFetchAdd,
	wire.RCSendLastInv, wire.RCSendOnlyInv,
	wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast, wire.UCSendLastImm, wire.UCSendOnly, wire.UCSendOnlyImm,
	wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast, wire.UCWriteLastImm, wire.UCWriteOnly, wire.UCWriteOnlyImm,
	wire.UDSendOnly, wire.UDSendOnlyImm, wire.CNP,
}

// hostileSyndromes are answers, most of them good news.
var hostileSyndromes = [8]wire.Syndrome{
	wire.ACK, wire.ACK, 0, wire.RNR | 1, wire.NAKSequence, wire.NAKInvalidRequest, wire.NAKRemoteAccess, wire.ACK,
}

// packet sends a packet that is nearly right: the script chooses among what
// fits the state of the queue pair and what does not.
func (h *hostile) packet(s *script) {
	how := s.byte()
	from, port := h.source(how)
	q, qpn := h.target(s.byte())
	hdr := wire.Header{
		Opcode: hostileOpcodes[int(s.byte())%len(hostileOpcodes)], Migrated: true, PKey: 0xffff, DestQP: qpn,
		QKey: hostileQKey, SrcQP: hostileQPN,
	}
	bits := s.byte()
	hdr.Syndrome = hostileSyndromes[bits>>4&7]
	hdr.AckReq, hdr.Solicited, hdr.FECN, hdr.BECN = bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
	h.number(q, &hdr, s.byte())
	n := int(s.uint(1)) * int(bits>>6+1)
	mr := h.region(s.byte())
	hdr.VA, hdr.RKey, hdr.InvRKey = mr.addr(0), mr.RKey(), mr.RKey()
	hdr.Length = uint32(n)
	hdr.MSN, hdr.Imm, hdr.Orig = uint32(bits), 0x1000+uint32(n), 42
	if how&0x80 != 0 {
		h.distort(s, &hdr)
	}
	payload := make([]byte, min(n, 4096))
	switch hdr.Opcode {
	case wire.RCReadRequest, wire.RCAcknowledge, wire.RCAtomicAcknowledge,
		wire.RCCompareSwap, wire.RCFetchAdd, wire.CNP:
		payload = payload[:int(s.byte())/255*len(payload)]
	default:
	}
	for i := range payload {
		payload[i] = byte(i) ^ bits
	}
	data := h.seal(from, port, &hdr, payload, how&0x60 == 0x60)
	if how&0x40 != 0 {
		data = h.mutate(s, from, port, data, hdr.Len())
	}
	for range 1 + btoi(how&0x68 == 0x08) {
		h.send(from, port, bytes.Clone(data))
	}
	if hdr.PSN == q.rqPSN { // roughly; a READ takes more
		q.rqPSN = wire.PSNAdd(q.rqPSN, 1)
	}
}

// target chooses the queue pair; sometimes it is the victim, or none.
func (h *hostile) target(c byte) (*hostileQP, uint32) {
	q := h.qps[int(c)%len(h.qps)]
	switch {
	case c >= 250:
		return q, uint32(c - 250) // QP 0, QP 1 and others with a meaning
	case c >= 240:
		// The attacker may know everything but the peer's address.
		v := h.victim[0].qp.(*qp)
		return &hostileQP{QP: v, rqPSN: v.resp.psn, sent: []wire.Header{{PSN: v.req.una}, {PSN: v.req.high}}}, v.num
	case c >= 235:
		return q, q.Num() + 1<<8
	case c >= 120: // mostly those that are ready
		q = h.qps[int(c)%3]
	}
	return q, q.Num()
}

// number chooses the PSN: for requests what the device expects, for responses
// what it sent, or some way off.
func (h *hostile) number(q *hostileQP, hdr *wire.Header, c byte) {
	base := q.rqPSN
	if op := hdr.Opcode; op >= wire.RCReadResponseFirst && op <= wire.RCAtomicAcknowledge && len(q.sent) > 0 {
		base = q.sent[int(c>>4)%len(q.sent)].PSN
	}
	switch c & 15 {
	case 8, 9, 10:
		base += uint32(c&15) - 9
	case 11:
		base += 5
	case 12:
		base -= 3
	case 13:
		base += 1 << 23
	case 14:
		base += 1<<23 - 1
	case 15:
		base = uint32(c) << 16
	}
	hdr.PSN = base & 0xffffff
}

// region chooses memory to ask for.
func (h *hostile) region(c byte) *modelRegion {
	return []*modelRegion{h.granted, h.granted, h.readOnly, h.private, h.foreign, h.victim[0].target, h.local, h.granted}[c&7]
}

// distort puts other values into the fields of a header.
func (h *hostile) distort(s *script, hdr *wire.Header) {
	switch c := s.byte(); c % 12 {
	case 0:
		hdr.Length = uint32(s.uint(4))
	case 1:
		hdr.VA = s.uint(8)
	case 2:
		hdr.VA += uint64(s.byte())*32 - 256 // around the whole region
		hdr.Length += uint32(s.byte())
	case 3:
		hdr.RKey = uint32(s.uint(4))
	case 4:
		hdr.RKey ^= 1 << (s.byte() & 31)
	case 5:
		hdr.Syndrome = wire.Syndrome(s.byte())
	case 6:
		hdr.PSN = uint32(s.uint(3))
	case 7:
		hdr.PKey = uint16(s.uint(2))
	case 8:
		hdr.QKey, hdr.SrcQP = uint32(s.uint(4)), uint32(s.uint(3))
	case 9:
		hdr.Opcode = wire.Opcode(s.byte())
	case 10:
		hdr.InvRKey = uint32(s.uint(4))
	case 11:
		hdr.VA, hdr.Length = ^uint64(0)-s.uint(1), ^uint32(0)-uint32(s.uint(1))
	}
}

// mutate changes bytes of a packet and mends its ICRC.
func (h *hostile) mutate(s *script, from netip.Addr, port uint16, data []byte, headers int) []byte {
	data = data[:len(data)-wire.ICRCLen]
	switch c := s.byte(); c % 4 {
	case 0:
		data = data[:int(s.uint(2))%(len(data)+1)]
	case 1:
		data = append(data, make([]byte, s.byte())...)
	default:
		for range c % 4 {
			data[int(s.uint(1))%min(len(data), headers)] = s.byte()
		}
	}
	return h.sum(from, port, data, min(len(data), wire.BTHLen), false)
}

// work posts a send work request of the device, so that it has something to
// believe responses about.
func (h *hostile) work(s *script) {
	c := s.byte()
	q := h.qps[int(c)%len(h.qps)]
	n := uint32(s.uint(1)) * 8
	wr := verbs.SendWR{
		WRID: uint64(c), SGList: []verbs.SGE{h.local.sge(int(c)*8, int(n))}, RemoteAddr: 0x1000, RKey: 7,
		Opcode: []verbs.WROpcode{
			verbs.WRSend, verbs.WRRDMARead, verbs.WRRDMAWrite, verbs.WRAtomicFetchAndAdd, verbs.WRSendWithImm,
		}[s.byte()%5],
	}
	if wr.Opcode == verbs.WRAtomicFetchAndAdd {
		wr.SGList[0].Length = 8
	}
	if q.Type() == verbs.QPTUD {
		wr.AH, wr.RemoteQPN = h.ah, q.dest
	}
	if s.byte() > 250 {
		wr.SGList[0].LKey ^= 1
	}
	h.accept(q.PostSend(&wr))
}

// receive posts a receive.
func (h *hostile) receive(s *script) {
	c := s.byte()
	q := h.qps[int(c)%len(h.qps)]
	h.accept(q.PostRecv(&verbs.RecvWR{
		WRID: modelRecvID, SGList: []verbs.SGE{h.local.sge(4096, int(s.byte())*8), h.local.sge(0, int(c))},
	}))
}

// modify takes a queue pair through RESET to a state.
func (h *hostile) modify(s *script) {
	c := s.byte()
	q := h.qps[int(c)%len(h.qps)]
	require.NoError(h.t, q.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	q.rqPSN = hostilePSN
	states := []verbs.QPState{verbs.QPSRTS, verbs.QPSRTS, verbs.QPSRTS, verbs.QPSRTR, verbs.QPSRTS, verbs.QPSErr, verbs.QPSInit}
	h.bring(q, states[int(c>>4)%len(states)])
}

// accept fails on errors of posts that do not come from the state of the queue.
func (h *hostile) accept(err error) {
	for _, ok := range []error{nil, verbs.ErrState, verbs.ErrQueueFull, verbs.ErrInvalid, verbs.ErrNotSupported} {
		if errors.Is(err, ok) {
			return
		}
	}
	require.NoError(h.t, err)
}

// packetStep is the step that sends a packet; the parameters are what
// hostile.packet reads.
func packetStep(how, qp byte, op wire.Opcode, bits, psn, n, region byte, more ...byte) []byte {
	return step(append([]byte{5, how, qp, byte(slices.Index(hostileOpcodes, op)), bits, psn, n, region}, more...)...)
}

// step is one step of a script.
func step(b ...byte) []byte { return append(b, make([]byte, stepLen-len(b))...) }
