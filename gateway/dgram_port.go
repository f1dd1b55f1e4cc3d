package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// dgramReceives is how many packets of peers a port takes in between two
	// turns; the rest is lost. It is more than a device hands over in one, so that
	// bursts wait where there is room for them: in the socket buffer, or in the
	// ring of shm, which is shorter.
	dgramReceives    = 2048
	dgramReceivesShm = 512
	// dgramSendDepth is how many packets a port has under way.
	dgramSendDepth = 2048
	// dgramFits is the room that will do for a datagram in more pieces, too.
	dgramFits = 128
	// grhLen is what UD leaves free before the message (IBTA vol. 1, 11.4.1.2).
	grhLen = 40
	// recvID marks the work requests of receives.
	recvID = 1 << 32
)

// dgramPort is a UD queue pair: one per soft device, shared by all peers, or one
// per shm peer. It is made by the keeper and belongs to the shard once it is
// given to it.
type dgramPort struct {
	e     *dgramEngine
	kind  negotiate.CarrierKind
	queue *loop.Queue
	qp    verbs.QP
	qkey  uint32 // random: only who has been told can send to it
	mtu   int
	pd    verbs.PD             // the peer's on shm, its own on soft
	tx    verbs.MR             // the slots of the engine
	room  verbs.DatagramRoomer // nil where the device does not know
	shm   *carrier.ShmPeer     // nil on soft
	leave func()               // of shm: it is not used any more
	gone  atomic.Bool

	rx      verbs.MR // receives of grhLen+mtu each, from start on
	rxSize  int
	started bool
	failed  bool
	links   map[dgramLinkKey]*dgramLink
	flight  int // work requests under way

	wr   verbs.SendWR // one for life: posting does not allocate
	sges [2]verbs.SGE
	rwr  verbs.RecvWR
}

// newDgramPort makes the queue pair, in INIT.
func newDgramPort(e *dgramEngine, d *carrier.Driven, kind negotiate.CarrierKind, pd verbs.PD, mtu int) (*dgramPort, error) {
	p := &dgramPort{
		e: e, kind: kind, queue: d.Queue(e.s), pd: pd, mtu: mtu, rxSize: grhLen + mtu,
		qkey:  rand.Uint32()>>1 | 1, // the high bit is for controlled keys (IBTA vol. 1, 10.2.5)
		links: map[dgramLinkKey]*dgramLink{},
	}
	var err error
	if p.tx, err = pd.RegMR(e.out.mem, 0); err != nil {
		return nil, fmt.Errorf("datagram memory: %w", err)
	}
	p.qp, err = pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: p.queue.CQ, RecvCQ: p.queue.CQ, Type: verbs.QPTUD,
		Cap: verbs.QPCap{MaxSendWR: dgramSendDepth, MaxRecvWR: p.receives(), MaxSendSGE: 2, MaxRecvSGE: 1},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("datagram queue pair: %w", err), p.tx.Close())
	}
	p.room, _ = p.qp.(verbs.DatagramRoomer)
	attr := verbs.QPAttr{State: verbs.QPSInit, Port: 1, QKey: p.qkey}
	if err := p.qp.Modify(&attr, verbs.UDInitMask); err != nil {
		return nil, errors.Join(fmt.Errorf("datagram queue pair: %w", err), p.qp.Close(), p.tx.Close())
	}
	p.wr.SGList, p.rwr.SGList = p.sges[:1], make([]verbs.SGE, 1)
	return p, nil
}

// start begins to send and receive; on the shard, and on shm with a peer that
// has attached.
func (p *dgramPort) start() error {
	if p.started || p.failed {
		return nil
	}
	var err error
	if p.rx, err = p.pd.RegMR(make([]byte, p.receives()*p.rxSize), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("datagram receives: %w", err)
	}
	if err := p.activate(); err != nil {
		err = errors.Join(err, p.rx.Close())
		p.rx = nil
		return err
	}
	return nil
}

// receives is how many are posted.
func (p *dgramPort) receives() int {
	if p.kind == negotiate.CarrierSHM {
		return dgramReceivesShm
	}
	return dgramReceives
}

func (p *dgramPort) activate() error {
	attr := verbs.QPAttr{State: verbs.QPSRTR, SQPSN: rand.Uint32() & 0xffffff}
	if err := p.qp.Modify(&attr, verbs.QPAttrState); err != nil {
		return fmt.Errorf("datagram queue pair to RTR: %w", err)
	}
	p.started = true
	p.queue.Members[p.qp.Num()] = p
	for i := range p.receives() {
		if err := p.repost(i); err != nil {
			return err
		}
	}
	attr.State = verbs.QPSRTS
	if err := p.qp.Modify(&attr, verbs.SQPSNMask); err != nil {
		return fmt.Errorf("datagram queue pair to RTS: %w", err)
	}
	return nil
}

// close ends the queue pair. It is on no shard, or the caller is.
func (p *dgramPort) close() error {
	p.gone.Store(true)
	if p.started {
		delete(p.queue.Members, p.qp.Num())
	}
	p.failed = true
	errs := []error{p.qp.Close(), p.tx.Close()}
	p.e.out.reclaim(p)
	for _, l := range p.links {
		errs = append(errs, l.ah.Close())
	}
	clear(p.links)
	if p.rx != nil {
		errs = append(errs, p.rx.Close())
	}
	if p.shm == nil {
		errs = append(errs, p.pd.Close())
	} else {
		p.leave()
	}
	return errors.Join(errs...)
}

func (p *dgramPort) repost(i int) error {
	p.rwr.WRID = recvID | uint64(i)
	p.rwr.SGList[0] = verbs.SGE{Addr: p.rx.Addr() + uint64(i*p.rxSize), Length: uint32(p.rxSize), LKey: p.rx.LKey()}
	if err := p.qp.PostRecv(&p.rwr); err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// Owner implements loop.Completer: a port works for no connection.
func (p *dgramPort) Owner() loop.Owner { return nil }

// Complete implements loop.Completer: it is called for every completion of the queue pair.
func (p *dgramPort) Complete(wc *verbs.WC) {
	if wc.Status != verbs.WCSuccess {
		p.broken(wc.Status)
		return
	}
	if wc.WRID&recvID == 0 {
		p.flight -= p.e.out.returned(uint16(wc.WRID), p)
		return
	}
	i := int(wc.WRID &^ recvID)
	at := i * p.rxSize
	p.e.received(p, wc, p.rx.Bytes()[at:at+p.rxSize])
	if !p.failed && p.repost(i) != nil {
		p.broken(verbs.WCGeneralErr)
	}
}

// broken is an error of the queue pair. Datagrams go natively from here on.
func (p *dgramPort) broken(s verbs.WCStatus) {
	if p.failed {
		return
	}
	if p.shm == nil || p.shm.Err() == nil {
		p.e.log.Warn("datagram queue pair failed", "carrier", p.kind, "status", s)
	}
	p.e.portLost(p)
}

// piecesOf is the number of packets that a payload takes.
func (l *dgramLink) piecesOf(hlen, n int) int { return max(1, (n+l.mtu-hlen-1)/(l.mtu-hlen)) }

// roomFor tells whether a datagram can be sent now.
func (p *dgramPort) roomFor(l *dgramLink, hlen, n int) bool {
	return !p.failed && p.started && p.flight+l.piecesOf(hlen, n) <= dgramSendDepth
}

// full tells whether a datagram would be lost on its way, because the peer has
// not taken those before it.
func (l *dgramLink) full(hlen, n int) bool {
	return l.port.room != nil && !l.port.failed && l.port.room.DatagramRoom(l.qpn) < min(l.piecesOf(hlen, n), dgramFits)
}

// sendPieces posts a datagram that there is room for and that lies in a slot,
// headers first, as one packet, or several with the same headers and this id. The
// slot is the port's from here on.
func (p *dgramPort) sendPieces(l *dgramLink, slot, id uint16, at, hlen, n int) {
	room, wrs := l.mtu-hlen, l.piecesOf(hlen, n)
	p.e.out.lend(slot, p, wrs)
	p.flight += wrs
	head := verbs.SGE{Addr: p.tx.Addr() + uint64(int(slot)*dgramSlotSize+at), LKey: p.tx.LKey(), Length: uint32(hlen)}
	p.address(l, slot)
	if wrs == 1 {
		p.wr.Opcode = verbs.WRSend
		head.Length += uint32(n)
		p.sges[0] = head
		p.wr.SGList = p.sges[:1]
		p.post(verbs.SendSignaled)
		return
	}
	p.wr.Opcode = verbs.WRSendWithImm
	p.wr.SGList = p.sges[:2]
	body := head.Addr + uint64(hlen)
	for i := range wrs {
		length := min(room, n-i*room)
		p.sges[0] = head
		p.sges[1] = verbs.SGE{Addr: body + uint64(i*room), LKey: head.LKey, Length: uint32(length)}
		last := i == wrs-1
		p.wr.ImmData = pieceImm(id, i, last)
		var flags verbs.SendFlags
		if last {
			flags = verbs.SendSignaled
		}
		if !p.post(flags) {
			return
		}
	}
}

// sendControl posts a control message that begins a slot.
func (p *dgramPort) sendControl(l *dgramLink, slot uint16, kind uint8, n int) bool {
	if p.failed || !p.started || p.flight == dgramSendDepth {
		return false
	}
	p.e.out.lend(slot, p, 1)
	p.flight++
	p.address(l, slot)
	p.wr.Opcode, p.wr.ImmData = verbs.WRSendWithImm, controlImm(kind)
	p.sges[0] = verbs.SGE{Addr: p.tx.Addr() + uint64(int(slot)*dgramSlotSize), LKey: p.tx.LKey(), Length: uint32(n)}
	p.wr.SGList = p.sges[:1]
	p.post(verbs.SendSignaled)
	return true
}

func (p *dgramPort) address(l *dgramLink, slot uint16) {
	p.wr.WRID, p.wr.AH, p.wr.RemoteQPN, p.wr.RemoteQKey = uint64(slot), l.ah, l.qpn, l.qkey
}

// post is false when the queue pair is broken; what is lost with it is counted.
func (p *dgramPort) post(flags verbs.SendFlags) bool {
	p.wr.Flags = flags
	if err := p.qp.PostSend(&p.wr); err != nil {
		p.e.log.Warn("post datagram", "carrier", p.kind, "error", err)
		p.e.count.drop(admin.DropCarrierError)
		p.broken(verbs.WCGeneralErr)
		return false
	}
	return true
}

// describe is what peers must know of the queue pair.
func (p *dgramPort) describe() resolve.UDOffer {
	return resolve.UDOffer{Kind: p.kind, MTU: uint16(p.mtu), QPN: p.qp.Num(), QKey: p.qkey}
}

// grhEnds are the addresses of a packet as the device saw them; not valid on
// shm, where there are none.
func grhEnds(grh []byte) dgramPair {
	switch {
	case grh[20] == 0x45 && binary.BigEndian.Uint64(grh) == 0:
		return dgramPair{remote: netip.AddrFrom4([4]byte(grh[32:36])), local: netip.AddrFrom4([4]byte(grh[36:40]))}
	case grh[0]>>4 == 6:
		return dgramPair{remote: netip.AddrFrom16([16]byte(grh[8:24])), local: netip.AddrFrom16([16]byte(grh[24:40]))}
	}
	return dgramPair{}
}
