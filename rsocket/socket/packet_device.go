package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/vector"

	"github.com/smcgw/smcgw/rsocket/internal/resolution"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// grhSize is the size of the GRH area before a received datagram in memory (IBTA vol. 1, 11.4.1.2).
	grhSize = 40
	// udHopLimit is the hop limit of the kernel's communication manager.
	udHopLimit = 64
	// wrSend marks the work request ids of sends; the lower bits are the slot.
	wrSend = 1 << 63
)

// packetDevice is the UD queue pair of a datagram socket on one device.
//
// Lock order: PacketConn.mu, mu and the queue's mutex are never nested, and none is held while waiting for the vector's
// token.
type packetDevice struct {
	conn  *PacketConn
	index int
	stack *Stack
	dom   *domain
	vec   *vector.Vector
	node  vector.Node

	gids    []verbs.GIDEntry // our addresses; never empty
	mr      verbs.MR
	recvLen int // size of a receive slot
	sendLen int
	sends   int // offset of the send slots in mr
	slots   int // of them
	qpn     atomic.Uint32

	// Owned by the holder of the token.
	qp      verbs.QP
	posting []udSend
	wr      verbs.SendWR
	rwr     verbs.RecvWR

	mu      sync.Mutex // guards everything below
	freed   sync.Cond
	free    []int // send slots
	filling int   // number of slots taken but not passed to leave yet
	pending []udSend
	closed  bool
}

// udSend is a message in a send slot.
type udSend struct {
	slot, size int
	control    resolution.Control // 0: it is a datagram
	echoed     int                // resolution.Echo: the size of the probe
	qpn        uint32
	handle     verbs.AH
}

// open creates memory and queue pair. After an error close releases what exists.
func (d *packetDevice) open(cfg *PacketListenConfig) (err error) {
	d.freed.L, d.node.Member = &d.mu, d
	d.vec, d.dom = d.stack.vector(), d.stack.domain
	mtu := d.stack.dev.Port().ActiveMTU.Bytes()
	d.recvLen, d.sendLen = grhSize+mtu, min(mtu, packetLimit)
	d.sends = cfg.RecvSlots * d.recvLen
	if d.mr, err = d.dom.pd.AllocMR(d.sends+cfg.SendSlots*d.sendLen, verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	d.slots = cfg.SendSlots
	for i := range d.slots {
		d.free = append(d.free, i)
	}
	d.pending, d.posting = make([]udSend, 0, cfg.SendSlots), make([]udSend, 0, cfg.SendSlots)
	d.wr.SGList, d.rwr.SGList = make([]verbs.SGE, 1), make([]verbs.SGE, 1)
	if derr := d.vec.Do(func() { err = d.start(cfg) }); derr != nil {
		return derr
	}
	return err
}

// start makes the queue pair. The caller holds the token.
func (d *packetDevice) start(cfg *PacketListenConfig) error {
	qp, err := d.dom.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: d.vec.CQ, RecvCQ: d.vec.CQ, Type: verbs.QPTUD, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: cfg.SendSlots, MaxRecvWR: cfg.RecvSlots, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return fmt.Errorf("queue pair: %w", err)
	}
	d.qp = qp
	d.vec.Add(qp.Num(), d)
	if err := verbs.StartUD(qp, rsocket.DatagramQKey, 0); err != nil {
		return err
	}
	for i := range cfg.RecvSlots {
		if err := d.postRecv(i); err != nil {
			return fmt.Errorf("post receive: %w", err)
		}
	}
	d.qpn.Store(qp.Num())
	return nil
}

// serves reports whether this device reaches remote from the address source.
func (d *packetDevice) serves(source netip.Addr, remote netip.AddrPort) bool {
	// A link-local address is meaningless without its zone, which is not sent.
	return !remote.Addr().IsLinkLocalUnicast() && source.IsValid() && verbs.GIDIndex(d.gids, verbs.GIDOf(source), 0) >= 0
}

// handle makes an address handle for a peer.
func (d *packetDevice) handle(source, remote netip.Addr) (verbs.AH, error) {
	return d.dom.pd.CreateAH(verbs.AHAttr{
		DGID: verbs.GIDOf(remote), HopLimit: udHopLimit, Port: 1,
		SGIDIndex: uint8(verbs.GIDIndex(d.gids, verbs.GIDOf(source), 0)), UDPPort: d.stack.dev.Port().UDPPort,
	})
}

func (d *packetDevice) postRecv(slot int) error {
	d.rwr.WRID = uint64(slot)
	d.rwr.SGList[0] = verbs.SGE{Addr: d.mr.Addr() + uint64(slot*d.recvLen), Length: uint32(d.recvLen), LKey: d.mr.LKey()}
	return d.qp.PostRecv(&d.rwr)
}

// sendSlot returns the memory of a send slot.
func (d *packetDevice) sendSlot(slot int) []byte {
	off := d.sends + slot*d.sendLen
	return d.mr.Bytes()[off : off+d.sendLen : off+d.sendLen]
}

// take takes a send slot; wait says whether to wait for one.
func (d *packetDevice) take(wait bool) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.free) == 0 || d.closed {
		switch {
		case d.closed:
			return 0, net.ErrClosed
		case !wait:
			return 0, errNoSlot
		case d.conn.writeLimit.Expired():
			return 0, os.ErrDeadlineExceeded
		}
		d.freed.Wait()
	}
	slot := d.free[len(d.free)-1]
	d.free = d.free[:len(d.free)-1]
	d.filling++
	return slot, nil
}

var errNoSlot = errors.New("no send slot")

func (d *packetDevice) release(slot int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = append(d.free, slot)
	d.freed.Signal()
}

// send queues a datagram for the vector to post.
func (d *packetDevice) send(p *resolution.PeerQP, payload []byte) error {
	slot, err := d.take(true)
	if err != nil {
		return err
	}
	b := rsocket.DatagramHeader{Source: netip.AddrPortFrom(p.Source, d.conn.port)}.Append(d.sendSlot(slot)[:0])
	b = append(b, payload...)
	d.leave(udSend{slot: slot, size: len(b), qpn: p.QPN, handle: p.Handle})
	d.vec.Kick()
	return nil
}

// control queues a probe of the given size, or an echo of one. It is dropped if there is no room; a peer that needs it
// asks again. The caller must kick the vector unless it holds the token.
func (d *packetDevice) control(p *resolution.PeerQP, what resolution.Control, size int) bool {
	slot, err := d.take(false)
	if err != nil {
		return false
	}
	room := d.sendSlot(slot)
	s := udSend{slot: slot, control: what, qpn: p.QPN, handle: p.Handle}
	s.size = len(rsocket.DatagramHeader{Source: netip.AddrPortFrom(p.Source, d.conn.port)}.Append(room[:0]))
	if what == resolution.Probe {
		size = min(max(s.size, size), len(room))
		clear(room[s.size:size])
		s.size = size
	}
	s.echoed = size
	d.leave(s)
	return true
}

func (d *packetDevice) leave(s udSend) {
	d.mu.Lock()
	d.pending = append(d.pending, s)
	if d.filling--; d.closed {
		d.freed.Broadcast()
	}
	d.mu.Unlock()
	d.vec.Wants(&d.node)
}

// Service implements vector.Member: it posts what was queued.
func (d *packetDevice) Service() {
	d.mu.Lock()
	d.posting, d.pending = d.pending, d.posting[:0]
	d.mu.Unlock()
	for i := range d.posting {
		if err := d.post(&d.posting[i]); err != nil {
			d.conn.counters.sendErrors.Add(1)
			d.release(d.posting[i].slot)
		}
	}
}

func (d *packetDevice) post(s *udSend) error {
	d.wr.WRID = wrSend | uint64(s.slot)
	d.wr.SGList[0] = verbs.SGE{
		Addr: d.mr.Addr() + uint64(d.sends+s.slot*d.sendLen), Length: uint32(s.size), LKey: d.mr.LKey(),
	}
	d.wr.Opcode, d.wr.ImmData = verbs.WRSend, 0
	if s.control != 0 {
		d.wr.Opcode, d.wr.ImmData = verbs.WRSendWithImm, controlImm(s.control, s.echoed)
	}
	d.wr.AH, d.wr.RemoteQPN, d.wr.RemoteQKey = s.handle, s.qpn, rsocket.DatagramQKey
	return d.qp.PostSend(&d.wr)
}

// Complete implements vector.Member.
func (d *packetDevice) Complete(wc *verbs.WC) {
	slot := int(wc.WRID &^ wrSend)
	if wc.WRID&wrSend != 0 {
		if wc.Status != verbs.WCSuccess {
			d.conn.counters.sendErrors.Add(1)
			d.mend()
		}
		d.release(slot)
		return
	}
	if wc.Status == verbs.WCSuccess {
		d.received(wc, d.mr.Bytes()[slot*d.recvLen:(slot+1)*d.recvLen])
	}
	if d.qp.State() == verbs.QPSErr || d.postRecv(slot) != nil {
		d.qpn.Store(0) // from now on everything goes over UDP
	}
}

// mend recovers the queue pair from the state that a failed send leaves it in (IBTA vol. 1, 10.3.1.6).
func (d *packetDevice) mend() {
	if d.qp.State() == verbs.QPSSQE {
		_ = d.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState)
	}
	if d.qp.State() == verbs.QPSErr {
		d.qpn.Store(0)
	}
}

// received processes a message in a receive slot.
func (d *packetDevice) received(wc *verbs.WC, slot []byte) {
	c := d.conn
	n := int(wc.ByteLen)
	if n < grhSize || n > len(slot) {
		c.counters.malformed.Add(1)
		return
	}
	h, payload, err := rsocket.ParseDatagramHeader(slot[grhSize:n])
	m := resolution.Message{Dev: d.index, QPN: wc.SrcQP, From: unmapped(h.Source), Local: grhDestination(slot)}
	if wc.Flags&verbs.WCWithImm != 0 {
		m.Control, m.Size = parseControl(wc.ImmData)
		if m.Control == resolution.Probe {
			m.Size = n - grhSize
		} else if m.Control != resolution.Echo {
			err = rsocket.ErrDatagramHeader
		}
	}
	switch {
	case err != nil || m.From.Port() == 0 || m.From.Addr().IsUnspecified() || m.From.Addr().IsMulticast():
		c.counters.malformed.Add(1)
		return
	case !genuine(m.From, wc, slot):
		c.counters.foreign.Add(1)
		return
	}
	c.mu.Lock()
	ev := c.table.ReceiveUD(time.Now(), &m)
	c.mu.Unlock()
	if m.Control == 0 {
		c.deliver(m.From, payload, &c.counters.receivedUD)
	}
	if ev.Echo > 0 && d.control(&ev.Peer, resolution.Echo, ev.Echo) {
		c.counters.echoes.Add(1)
	}
	if ev.Probe > 0 && d.control(&ev.Peer, resolution.Probe, ev.Probe) {
		c.counters.probes.Add(1)
	}
}

// controlImm returns the immediate of a probe or an echo: the control in bits 7:0, the size of the probe in bits 31:8.
func controlImm(what resolution.Control, size int) uint32 { return uint32(size)<<8 | uint32(what) }

func parseControl(imm uint32) (what resolution.Control, size int) {
	return resolution.Control(imm & 0xff), int(imm >> 8)
}

// genuine reports whether a datagram can come from that source: by queue pair a peer may claim only a source that the
// network would let it use over UDP.
func genuine(from netip.AddrPort, wc *verbs.WC, slot []byte) bool {
	return wc.Flags&verbs.WCGRH != 0 && grhSource(slot) == from.Addr()
}

// grhSource returns the source address in the first 40 bytes of a receive: an IPv6 header, or 20 undefined bytes and an
// IPv4 header (IBTA vol. 1, annex A17.4.5.1).
func grhSource(b []byte) netip.Addr {
	if b[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	return netip.AddrFrom4([4]byte(b[32:36]))
}

// grhDestination returns the address that a message was sent to.
func grhDestination(b []byte) netip.Addr {
	if b[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	}
	return netip.AddrFrom4([4]byte(b[36:40]))
}

// wake makes all writers check the deadline.
func (d *packetDevice) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freed.Broadcast()
}

// drainTime bounds the wait for the last datagrams to be sent.
const drainTime = 100 * time.Millisecond

// shut admits no more datagrams and waits until the device has sent those that were admitted, for drainTime at most. No
// slot is written to afterwards.
func (d *packetDevice) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.freed.Broadcast()
	late := false
	timer := time.AfterFunc(drainTime, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		late = true
		d.freed.Broadcast()
	})
	defer timer.Stop()
	for d.filling > 0 || len(d.free) < d.slots && d.qpn.Load() != 0 && !late {
		d.freed.Wait()
	}
}

// close releases everything that open made. The address handles must be closed already.
func (d *packetDevice) close() error {
	d.qpn.Store(0)
	var errs []error
	if d.qp != nil {
		num := d.qp.Num()
		err := d.vec.Do(func() {
			errs = append(errs, d.qp.Close())
			d.vec.Remove(num)
		})
		errs = append(errs, err)
	}
	if d.mr != nil {
		errs = append(errs, d.mr.Close())
	}
	return errors.Join(errs...)
}
