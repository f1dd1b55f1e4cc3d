package datagram

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// holdFor is how long the app TUN waits for a peer that has not consumed earlier datagrams.
// After that, datagrams to that peer go natively until it has, and others no longer wait.
const holdFor = 5 * time.Millisecond

// heldDatagram is the datagram that is waiting, and the app TUN with it; n is 0 if there is
// none.
type heldDatagram struct {
	slot uint16
	n    int
}

// hold keeps a datagram for which a link has no room, unless the wait has lasted too long.
func (e *engine) hold(l *link, slot uint16, n int) bool {
	if l.fullAt.IsZero() {
		l.fullAt = e.now
	}
	if e.now.Sub(l.fullAt) >= holdFor {
		return false
	}
	e.held = heldDatagram{slot: slot, n: n}
	return true
}

// unhold retries the waiting datagram, and reports whether the app TUN can be read.
func (e *engine) unhold() bool {
	if h := e.held; h.n > 0 {
		e.held = heldDatagram{}
		e.outgoing(h.slot, h.n)
	}
	return e.held.n == 0
}

// readTUN reads datagrams of local programs until there are no more, the turn's budget is
// used up, or all slots are in use. The slots of a closing port come back only when its
// device allows it; meanwhile datagrams that find no other slot go natively.
func (e *engine) readTUN() (worked bool) {
	if !e.unhold() || !e.readable {
		return false
	}
	for range readBudget {
		slot, ok := e.out.take()
		if !ok {
			if !e.portEnds() {
				return worked
			}
			slot = spareSlot
		}
		n, errno := loop.RawRead(e.cfg.TUN, e.out.bytes(slot))
		if errno != 0 {
			e.out.put(slot)
			if errno == unix.EINTR {
				continue
			}
			e.readable = false // errors other than EAGAIN (the device is down) also end with an edge
			return worked
		}
		worked = true
		if !ok {
			e.giveBack(slot, n)
			continue
		}
		if e.outgoing(slot, n); e.held.n > 0 {
			return worked
		}
	}
	return worked
}

// mayRead reports whether a slot is available for a datagram from the app TUN.
func (e *engine) mayRead() bool { return len(e.out.free) > 0 || e.portEnds() }

// portEnds reports whether a port is being closed.
func (e *engine) portEnds() bool {
	for p := range e.ports {
		if p.ending {
			return true
		}
	}
	return false
}

// outgoing carries one datagram of a local program, or returns it to the network.
func (e *engine) outgoing(slot uint16, n int) {
	b := e.out.bytes(slot)
	if n > len(b) {
		e.out.put(slot)
		e.count.drop(report.DropQueueFull)
		return
	}
	p, err := parseUDP(b[:n])
	if err != nil {
		e.giveBack(slot, n)
		return
	}
	t := ebpf.Tuple{Local: p.src, Remote: p.dst}
	f := e.flows.find(t)
	if f == nil {
		if f = e.openOut(t); f == nil {
			e.giveBack(slot, n)
			return
		}
	}
	l := f.peer.linkFrom(t.Local.Addr())
	size, hlen := len(p.payload), p.headersLen()
	if l == nil {
		e.missed(f)
		e.giveBack(slot, n)
		return
	}
	if !l.port.roomFor(l, hlen, size) {
		e.giveBack(slot, n)
		return
	}
	if l.full(hlen, size) {
		if !e.hold(l, slot, n) {
			e.giveBack(slot, n)
		}
		return
	}
	l.fullAt = time.Time{}
	var id uint16
	if hlen+size > l.mtu {
		var ok bool
		if id, ok = l.ids.take(e.now); !ok {
			e.giveBack(slot, n)
			return
		}
	}
	at := p.payloadAt() - hlen
	p.append(b[at:at])
	f.peer.sent = e.now
	e.touch(f)
	f.tx.Add(uint64(size))
	l.port.sendPieces(l, slot, id, at, hlen, size) // may end f if the queue pair is broken
	e.count.sent[l.port.kind].Add(1)
	e.count.txBytes[l.port.kind].Add(uint64(size))
}

// missed asks for a peer that is not capable and opened the flow with a datagram of its own.
// In that case the programs never report that the peer is wanted.
func (e *engine) missed(f *flow) {
	if p := f.peer; !e.now.Before(p.native) {
		p.native = e.now.Add(nativeEvery)
		e.want(addrPair{f.tuple.Local.Addr(), p.addr})
	}
}

// openOut makes the flow of a tuple whose first datagram was steered, or returns nil if it
// has to go natively.
func (e *engine) openOut(t ebpf.Tuple) *flow {
	reason := e.quiet
	if p := e.peers[t.Remote.Addr()]; p != nil && reason == negotiate.ReasonNone {
		if l := p.linkFrom(t.Local.Addr()); l != nil {
			return e.newFlow(l, t, report.SideClient)
		}
	}
	if reason == negotiate.ReasonNone { // just suspended, or not proven for this local address
		reason = negotiate.ReasonPeerUnresolved
	}
	if err := e.steer.CloseDatagram(t, uint8(reason), nativeEvery); err != nil {
		e.log.Debug("leave datagram tuple native", "tuple", t, "error", err)
	}
	return nil
}

// giveBack returns a datagram to the network unchanged.
func (e *engine) giveBack(slot uint16, n int) {
	if e.writeTUN(e.out.bytes(slot)[:n]) {
		e.count.returned.Add(1)
	} else {
		e.count.drop(report.DropQueueFull)
	}
	e.out.put(slot)
}

// writeTUN writes one packet to the app TUN and reports whether it was taken.
func (e *engine) writeTUN(b []byte) bool {
	for {
		switch loop.RawWrite(e.cfg.TUN, b) {
		case 0:
			return true
		case unix.EINTR:
		default:
			return false
		}
	}
}

const (
	// slotCount is the number of datagrams of local programs in flight to their carriers.
	// When all slots are in use, the app TUN is not read, and its queue drops like that of a
	// network card.
	slotCount = 256
	// slotSize holds any packet. Memory is allocated as it is touched.
	slotSize = 65 << 10
	// spareSlot is never sent from: what is read into it goes back to the network.
	spareSlot = slotCount
)

// slots is the memory that datagrams are sent from: the app TUN is read into it, and every
// port has registered it. A slot belongs to a port until the send has completed.
type slots struct {
	mem  []byte
	free []uint16
	used [slotCount]slotUse
}

// slotUse is the port that sends from a slot.
type slotUse struct {
	port *port
	wrs  int // work requests sent from it
}

func newSlots() *slots {
	o := &slots{mem: make([]byte, (slotCount+1)*slotSize), free: make([]uint16, 0, slotCount)}
	for i := range slotCount {
		o.free = append(o.free, uint16(slotCount-1-i))
	}
	return o
}

// take returns a free slot.
func (o *slots) take() (uint16, bool) {
	n := len(o.free)
	if n == 0 {
		return 0, false
	}
	slot := o.free[n-1]
	o.free = o.free[:n-1]
	return slot, true
}

// put returns a slot from which nothing is being sent.
func (o *slots) put(slot uint16) {
	if slot != spareSlot {
		o.free = append(o.free, slot)
	}
}

// bytes returns the memory of a slot.
func (o *slots) bytes(slot uint16) []byte {
	at := int(slot) * slotSize
	return o.mem[at : at+slotSize : at+slotSize]
}

// lend records that a port sends from a slot.
func (o *slots) lend(slot uint16, p *port, wrs int) {
	o.used[slot] = slotUse{port: p, wrs: wrs}
}

// returned is called for the completion of a slot. It returns the number of its work
// requests, or 0 if the slot does not belong to the port.
func (o *slots) returned(slot uint16, p *port) int {
	if int(slot) >= slotCount || o.used[slot].port != p {
		return 0
	}
	n := o.used[slot].wrs
	o.used[slot] = slotUse{}
	o.put(slot)
	return n
}

// reclaim frees all slots of a port that is gone.
func (o *slots) reclaim(p *port) {
	for i := range o.used {
		o.returned(uint16(i), p)
	}
}
