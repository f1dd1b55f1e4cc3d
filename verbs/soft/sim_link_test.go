package soft

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// simLink is one vector's sockets on a simNet. It does what the kernel does to
// datagrams and no more: it cuts trains, verifies the UDP checksum, picks the
// vector and shows neither the IPv4 identification nor anything else that a
// socket does not show.
type simLink struct {
	net    *simNet
	cfg    *Config
	vector int
	closed bool
	inbox  []simArrival
	bytes  int // in the inbox
	count  linkStats
	// noTrains is the kernel that refuses UDP_SEGMENT from some time on.
	noTrains bool
	mtu      int // of the path, as the kernel knows it: longer UDP payloads are refused; 0: no limit
	icrcs    map[wire.Flow]wire.ICRC
	scratch
}

// scratch is the memory in which a datagram is shown to the device, overwritten
// as soon as deliver returned: a device that keeps it beyond that reads
// rubbish.
type scratch struct{ shown [1 << 16]byte }

// rubbish is what a datagram becomes when it was delivered.
var rubbish = [1 << 13]byte(bytes.Repeat([]byte{0xdb}, 1<<13))

// simArrival is a datagram in the socket's buffer.
type simArrival struct {
	local int
	src   netip.AddrPort
	ce    bool
	data  []byte
}

// simReceiveBuffer is SO_RCVBUF.
const simReceiveBuffer = 8 << 20

// newLink is Config.newLink on this network.
func (n *simNet) newLink(cfg *Config, vector int) (link, error) {
	l := &simLink{net: n, cfg: cfg, vector: vector, icrcs: map[wire.Flow]wire.ICRC{}}
	for _, a := range cfg.Addrs {
		at := netip.AddrPortFrom(a, cfg.UDPPort)
		for len(n.links[at]) <= vector {
			n.links[at] = append(n.links[at], nil)
		}
		if n.links[at][vector] != nil {
			return nil, fmt.Errorf("address %v in use", at)
		}
		n.links[at][vector] = l
	}
	return l, nil
}

func (l *simLink) sourcePort(local int, lane uint8) uint16 {
	if local < 0 || local >= len(l.cfg.Addrs) || lane >= lanes {
		panic(fmt.Sprintf("source port of address %d, lane %d", local, lane))
	}
	return 0xc000 | uint16(local)<<8 | uint16(l.vector)<<4 | uint16(lane)
}

func (l *simLink) maxTrain() int {
	if l.noTrains || l.cfg.NoOffload {
		return 1
	}
	return maxTrainCount
}

// stopTrains makes every link refuse trains from now on.
func (n *simNet) stopTrains() {
	for _, links := range n.links {
		for _, l := range links {
			l.noTrains = true
		}
	}
}

// send panics on trains that the kernel would refuse: that is a mistake of the
// caller which on sockets would show as loss.
func (l *simLink) send(trains []train) {
	for i := range trains {
		l.sendTrain(&trains[i])
	}
}

func (l *simLink) sendTrain(t *train) {
	all := bytes.Join(t.bufs, nil)
	switch {
	case l.closed:
		panic("send on a closed link")
	case t.count < 1 || t.count > maxTrainCount, t.size < 1,
		len(all) != t.total, t.total > maxTrainBytes,
		t.total > t.count*t.size, t.total <= (t.count-1)*t.size:
		panic(fmt.Sprintf("train of %d datagrams of %d bytes, %d in all, %d in the buffers", t.count, t.size, t.total, len(all)))
	case t.dst.Addr().Is4In6() || !t.dst.IsValid():
		panic(fmt.Sprintf("train to %v", t.dst))
	}
	if t.tooLong = l.mtu > 0 && t.size > l.mtu; t.tooLong || t.count > l.maxTrain() {
		l.count.SendErrors++
		return
	}
	src := netip.AddrPortFrom(l.cfg.Addrs[t.local], l.sourcePort(t.local, t.lane))
	l.count.SentCalls++
	for i := 0; len(all) > 0; i++ {
		n := min(t.size, len(all))
		if l.net.strict {
			l.inspect(wire.Flow{Src: src.Addr(), Dst: t.dst.Addr(), SrcPort: src.Port(), DstPort: t.dst.Port()}, i, all[:n])
		}
		l.count.SentPackets++
		l.count.SentBytes += uint64(n)
		l.net.transmit(src, t.dst, t.ect, all[:n:n])
		all = all[n:]
	}
}

// inspect panics on a datagram that another device would not understand. Which
// identification the ICRC was made for cannot be seen at the receiver, here it
// can: it must be the datagram's place in its train.
func (l *simLink) inspect(f wire.Flow, place int, data []byte) {
	icrc, ok := l.icrcs[f]
	if !ok {
		icrc = wire.NewICRC(f)
		l.icrcs[f] = icrc
	}
	id, ok := icrc.Verify(uint16(place), data)
	var h wire.Header
	_, err := h.Parse(data)
	if !ok || err != nil || f.Dst.Is4() && int(id) != place {
		panic(fmt.Sprintf("datagram %d of a train: %+v (%v), ICRC right: %v, for identification %d", place, h, err, ok, id))
	}
}

// transmit sends one datagram, which from here on belongs to the network.
// Tests call it to inject datagrams from anywhere.
func (n *simNet) transmit(src, dst netip.AddrPort, ect bool, data []byte) {
	r := n.route(src.Addr(), dst.Addr())
	n.stats.sent++
	n.show("sent", src, data)
	copies := 1
	if r.tap != nil {
		switch r.tap(src, data) {
		case simDrop:
			n.stats.lost++
			return
		case simTwice:
			copies = 2
		case simPass:
		}
	}
	for range copies {
		r.carry(wireSize(dst.Addr(), len(data)), ect, func(ce bool) {
			if arrived, ok := r.damage(data); ok {
				n.show("came", src, arrived)
				n.arrive(src, dst, ce, arrived)
			}
		})
	}
}

// show tells the trace.
func (n *simNet) show(what string, src netip.AddrPort, data []byte) {
	if n.trace == nil {
		return
	}
	var h wire.Header
	payload, err := h.Parse(data)
	if err != nil {
		n.trace("%12v %s from %v: %d bytes: %v", n.now, what, src, len(data), err)
		return
	}
	n.trace("%12v %s from %v to %#x: %v psn %#x, %d bytes, ack req %v, syndrome %#x, length %d",
		n.now, what, src.Addr(), h.DestQP, h.Opcode, h.PSN, len(payload), h.AckReq, uint8(h.Syndrome), h.Length)
}

// wireSize is what a datagram takes on Ethernet: preamble, header, frame check,
// gap, IP and UDP.
func wireSize(dst netip.Addr, payload int) int {
	if dst.Is4() {
		return payload + 38 + 20 + 8
	}
	return payload + 38 + 40 + 8
}

// damage flips bits now and then and decides whether the kernel notices.
func (r *simRoute) damage(data []byte) ([]byte, bool) {
	n := r.net
	if len(data) == 0 || !n.chance(r.corrupt) {
		return data, true
	}
	n.stats.corrupted++
	bad := bytes.Clone(data)
	switch n.rng.IntN(3) {
	case 0: // one bit
		bad[n.rng.IntN(len(bad))] ^= 1 << n.rng.IntN(8)
	case 1: // a few bits anywhere
		for range 2 + n.rng.IntN(4) {
			bad[n.rng.IntN(len(bad))] ^= 1 << n.rng.IntN(8)
		}
	case 2: // a stretch of noise
		at := n.rng.IntN(len(bad))
		for i := range bad[at:min(at+1+n.rng.IntN(32), len(bad))] {
			bad[at+i] = byte(n.rng.Uint32())
		}
	}
	// The dice are thrown in any case: whether flips cancel out depends on keys,
	// which differ from run to run.
	if unseen := n.chance(r.unchecked); checksum(bad) != checksum(data) && !unseen {
		n.stats.badChecksum++
		return nil, false
	}
	return bad, true
}

// checksum is the ones' complement sum of RFC 1071 without the pseudo header,
// which corruption does not reach here.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0
	}
	return uint16(sum)
}

// arrive puts a datagram into the buffer of the vector that the low bits of its
// destination queue pair name, where the lanes of a sender of our kind lead it.
// Other senders' datagrams arrive at any vector, with scatter ours do too.
func (n *simNet) arrive(src, dst netip.AddrPort, ce bool, data []byte) {
	links := n.links[dst]
	if len(links) == 0 {
		n.stats.noSocket++
		return
	}
	vector := 0
	if len(data) > 7 {
		vector = int(data[7]) % lanes % len(links)
	}
	if n.chance(n.scatter) {
		vector = n.rng.IntN(len(links))
	}
	l := links[vector]
	if l == nil || l.closed {
		n.stats.noSocket++
		return
	}
	if l.bytes+len(data) > simReceiveBuffer {
		n.stats.bufferOverflows++
		return
	}
	for i, a := range l.cfg.Addrs {
		if a == dst.Addr() {
			l.bytes += len(data)
			l.inbox = append(l.inbox, simArrival{local: i, src: src, ce: ce, data: data})
			n.stats.delivered++
		}
	}
}

func (l *simLink) receive(budget int, to receiver) bool {
	for ; budget > 0 && len(l.inbox) > 0; budget-- {
		a := l.inbox[0]
		l.inbox[0] = simArrival{}
		if l.inbox = l.inbox[1:]; len(l.inbox) == 0 {
			l.inbox = nil
		}
		l.bytes -= len(a.data)
		l.count.ReceivedPackets++
		l.count.ReceivedBytes += uint64(len(a.data))
		n := copy(l.shown[:], a.data)
		to.deliver(&datagram{local: a.local, src: a.src, ce: a.ce, data: l.shown[:n:n]})
		copy(l.shown[:n], rubbish[:])
	}
	return len(l.inbox) > 0
}

func (l *simLink) fds() []int       { return nil }
func (l *simLink) stats() linkStats { return l.count }

func (l *simLink) close() error {
	l.closed = true
	for _, a := range l.cfg.Addrs {
		at := netip.AddrPortFrom(a, l.cfg.UDPPort)
		if links := l.net.links[at]; l.vector < len(links) && links[l.vector] == l {
			links[l.vector] = nil
		}
	}
	return nil
}
