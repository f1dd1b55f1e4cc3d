package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// receiveDepth is the number of packets that a port can receive between two turns; more
	// are lost. It exceeds what a device delivers in one turn, so that bursts wait where
	// there is room for them: in the socket buffer, or in the shm ring, which is shorter.
	receiveDepth    = 2048
	receiveDepthShm = 512
	// sendDepth bounds the packets that a port has in flight.
	sendDepth = 2048
	// enoughRoom is the room that suffices even for a datagram in more pieces.
	enoughRoom = 128
	// grhLen is the space that UD reserves before the message (IBTA vol. 1, 11.4.1.2).
	grhLen = 40
	// recvID marks the work requests of receives.
	recvID = 1 << 32
)

// portState is the state of a port. The shard changes it; the keeper also reads it.
//
//	made ─► active ─► gone
//	  └────────────────►
type portState uint32

const (
	portMade   portState = iota // made by the keeper: its queue pair is in INIT
	portActive                  // it sends and receives
	portGone                    // its queue pair is broken or closed
)

// port is a UD queue pair: one per device on a network, shared by all of its peers, or one
// per peer that shares memory. The keeper makes it and hands it to the shard, which owns it
// from then on.
type port struct {
	e     *engine
	kind  negotiate.CarrierKind
	queue *loop.Queue
	qp    verbs.QP
	qkey  uint32 // random: a sender must have been told
	mtu   int
	dev   verbs.Device          // nil where memory is shared
	pd    verbs.PD              // the peer's on shm, its own on a network
	tx    verbs.MR              // the slots of the engine
	room  verbs.DatagramRoomer  // nil where the device does not know
	shm   *shm.Peer             // nil on a network
	hold  func() (leave func()) // keeps an idle peer; nil on a network
	leave func()                // releases what hold took, or tells the device that it is no longer in use
	at    atomic.Uint32         // a portState

	// beside tracks goroutines that work for the port: they make and close its address
	// handles. None starts once the port is ending.
	beside sync.WaitGroup
	ending bool          // closePort was called
	closed chan struct{} // closed when nothing of the port is left

	rx     verbs.MR // receive buffers of grhLen+mtu each, from the start on
	rxSize int
	links  map[linkKey]*link
	flight int // work requests in flight

	wr   verbs.SendWR // reused: posting does not allocate
	sges [2]verbs.SGE
	rwr  verbs.RecvWR
}

// place is where a port is made.
type place struct {
	queue *loop.Queue
	pd    verbs.PD
	mtu   int
	dev   verbs.Device // nil where memory is shared
	shm   *shm.Peer    // nil on a network
	hold  func() (leave func())
}

// newNetworkPort makes a port on a device, which stays open for it.
func newNetworkPort(e *engine, kind negotiate.CarrierKind, dev *carrier.DatagramDevice) (*port, error) {
	queue, leave, err := dev.Hold(e.s, queueNeed)
	if err != nil {
		return nil, fmt.Errorf("device: %w", err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		leave()
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	p, err := newPort(e, kind, place{queue: queue, pd: pd, mtu: dev.Port.ActiveMTU.Bytes(), dev: dev.Device})
	if err != nil {
		err = errors.Join(err, pd.Close())
		leave()
		return nil, err
	}
	p.leave = leave
	return p, nil
}

// newPort makes a port with its queue pair in INIT.
func newPort(e *engine, kind negotiate.CarrierKind, at place) (*port, error) {
	p := &port{
		e: e, kind: kind, queue: at.queue, dev: at.dev, pd: at.pd, mtu: at.mtu, rxSize: grhLen + at.mtu,
		shm: at.shm, hold: at.hold, leave: func() {},
		qkey:  rand.Uint32()>>1 | 1, // the high bit is for controlled keys (IBTA vol. 1, 10.2.5)
		links: map[linkKey]*link{}, closed: make(chan struct{}),
	}
	var err error
	if p.tx, err = p.pd.RegMR(e.out.mem, 0); err != nil {
		return nil, fmt.Errorf("datagram memory: %w", err)
	}
	p.qp, err = p.pd.CreateQP(&verbs.QPInitAttr{
		SendCQ: p.queue.CQ, RecvCQ: p.queue.CQ, Type: verbs.QPTUD,
		Cap: verbs.QPCap{MaxSendWR: sendDepth, MaxRecvWR: p.receives(), MaxSendSGE: 2, MaxRecvSGE: 1},
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
	if p.dev != nil { // slow on an adapter: not on the shard
		if err := p.registerReceives(); err != nil {
			return nil, errors.Join(err, p.qp.Close(), p.tx.Close())
		}
	}
	return p, nil
}

// registerReceives allocates and registers the receive buffers.
func (p *port) registerReceives() (err error) {
	if p.rx, err = p.pd.RegMR(make([]byte, p.receives()*p.rxSize), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("datagram receives: %w", err)
	}
	return nil
}

func (p *port) is(s portState) bool { return portState(p.at.Load()) == s }

// start makes a port send and receive. Where memory is shared, the peer must have attached:
// until then the device may take the memory back. A port that cannot start is gone.
func (p *port) start() error {
	if !p.is(portMade) {
		return nil
	}
	if p.rx == nil {
		if err := p.registerReceives(); err != nil {
			return err
		}
	}
	if p.hold != nil {
		p.leave = p.hold()
	}
	if err := p.activate(); err != nil {
		p.e.portLost(p)
		return err
	}
	return nil
}

// receives returns the number of posted receives.
func (p *port) receives() int {
	if p.kind == negotiate.CarrierSHM {
		return receiveDepthShm
	}
	return receiveDepth
}

func (p *port) activate() error {
	attr := verbs.QPAttr{State: verbs.QPSRTR, SQPSN: rand.Uint32() & 0xffffff}
	if err := p.qp.Modify(&attr, verbs.QPAttrState); err != nil {
		return fmt.Errorf("datagram queue pair to RTR: %w", err)
	}
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
	p.at.Store(uint32(portActive))
	return nil
}

// part detaches the queue pair from the shard, on which it must be called, and returns the
// function that closes it. A queue pair that no other goroutine may close is closed at once.
func (p *port) part() (end func() error) {
	if num := p.qp.Num(); p.queue.Members[num] == loop.Completer(p) {
		delete(p.queue.Members, num)
	}
	if d, ok := p.qp.(verbs.Detacher); ok {
		d.Detach()
		return p.qp.Close
	}
	err := p.qp.Close()
	return func() error { return err }
}

// close frees the parts of the port, outside the shard. It reports whether the device can no
// longer reach the slots: an adapter may refuse to release the queue pair.
func (p *port) close(end func() error) (free bool, err error) {
	p.beside.Wait()
	qp, tx := end(), p.tx.Close()
	errs := []error{qp, tx}
	if p.rx != nil {
		errs = append(errs, p.rx.Close())
	}
	if p.shm == nil {
		errs = append(errs, p.pd.Close())
	}
	p.leave()
	return qp == nil || tx == nil, errors.Join(errs...)
}

func (p *port) repost(i int) error {
	p.rwr.WRID = recvID | uint64(i)
	p.rwr.SGList[0] = verbs.SGE{Addr: p.rx.Addr() + uint64(i*p.rxSize), Length: uint32(p.rxSize), LKey: p.rx.LKey()}
	if err := p.qp.PostRecv(&p.rwr); err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// Owner implements loop.Completer: a port works for no connection.
func (p *port) Owner() loop.Owner { return nil }

// Complete implements loop.Completer. It is called for every completion of the queue pair.
func (p *port) Complete(wc *verbs.WC) {
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
	if !p.is(portGone) && p.repost(i) != nil {
		p.broken(verbs.WCGeneralErr)
	}
}

// broken handles an error of the queue pair. Datagrams go natively from here on.
func (p *port) broken(s verbs.WCStatus) {
	if p.is(portGone) {
		return
	}
	if p.shm == nil || p.shm.Err() == nil {
		p.e.log.Warn("datagram queue pair failed", "carrier", p.kind, "status", s)
	}
	p.e.portLost(p)
}

// piecesOf returns the number of packets that a payload takes.
func (l *link) piecesOf(hlen, n int) int { return max(1, (n+l.mtu-hlen-1)/(l.mtu-hlen)) }

// roomFor reports whether a datagram can be sent now.
func (p *port) roomFor(l *link, hlen, n int) bool {
	return p.is(portActive) && p.flight+l.piecesOf(hlen, n) <= sendDepth && l.handle()
}

// full reports whether a datagram would be lost because the peer has not consumed those
// before it.
func (l *link) full(hlen, n int) bool {
	return l.port.room != nil && !l.port.is(portGone) && l.port.room.DatagramRoom(l.qpn) < min(l.piecesOf(hlen, n), enoughRoom)
}

// sendPieces posts a datagram for which there is room. It lies in a slot, headers first, and
// is sent as one packet, or as several with the same headers and this id. The port owns the
// slot from here on.
func (p *port) sendPieces(l *link, slot, id uint16, at, hlen, n int) {
	room, wrs := l.mtu-hlen, l.piecesOf(hlen, n)
	p.e.out.lend(slot, p, wrs)
	p.flight += wrs
	head := verbs.SGE{Addr: p.tx.Addr() + uint64(int(slot)*slotSize+at), LKey: p.tx.LKey(), Length: uint32(hlen)}
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

// sendControl posts a control message that lies at the start of a slot.
func (p *port) sendControl(l *link, slot uint16, kind uint8, n int) bool {
	if !p.is(portActive) || p.flight == sendDepth || !l.handle() {
		return false
	}
	p.e.out.lend(slot, p, 1)
	p.flight++
	p.address(l, slot)
	p.wr.Opcode, p.wr.ImmData = verbs.WRSendWithImm, controlImm(kind)
	p.sges[0] = verbs.SGE{Addr: p.tx.Addr() + uint64(int(slot)*slotSize), LKey: p.tx.LKey(), Length: uint32(n)}
	p.wr.SGList = p.sges[:1]
	p.post(verbs.SendSignaled)
	return true
}

func (p *port) address(l *link, slot uint16) {
	p.wr.WRID, p.wr.AH, p.wr.RemoteQPN, p.wr.RemoteQKey = uint64(slot), l.ah, l.qpn, l.qkey
}

// post returns false if the queue pair is broken. It counts the datagram lost with it.
func (p *port) post(flags verbs.SendFlags) bool {
	p.wr.Flags = flags
	if err := p.qp.PostSend(&p.wr); err != nil {
		p.e.log.Warn("post datagram", "carrier", p.kind, "error", err)
		p.e.count.drop(report.DropCarrierError)
		p.broken(verbs.WCGeneralErr)
		return false
	}
	return true
}

// describe returns what peers must know of the queue pair.
func (p *port) describe() resolve.UDOffer {
	return resolve.UDOffer{Kind: p.kind, MTU: uint16(p.mtu), QPN: p.qp.Num(), QKey: p.qkey}
}

// grhEnds returns the addresses of a packet as the device saw them. It is not valid on shm,
// which has none.
func grhEnds(grh []byte) addrPair {
	switch {
	case grh[20] == 0x45 && binary.BigEndian.Uint64(grh) == 0:
		return addrPair{remote: netip.AddrFrom4([4]byte(grh[32:36])), local: netip.AddrFrom4([4]byte(grh[36:40]))}
	case grh[0]>>4 == 6:
		return addrPair{remote: netip.AddrFrom16([16]byte(grh[8:24])), local: netip.AddrFrom16([16]byte(grh[24:40]))}
	}
	return addrPair{}
}
