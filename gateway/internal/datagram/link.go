package datagram

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// cookieLen begins a probe: the number of the proof, and 8 random bytes.
const cookieLen = 16

// addrPair are the addresses of this host and of a peer. IPv4 is unmapped.
type addrPair struct{ local, remote netip.Addr }

// linkKey finds the link that a packet came by.
type linkKey struct {
	addrPair
	qpn uint32
}

// link is a way to a peer and back: a port of ours and a queue pair of the
// peer's, for one pair of addresses.
//
// An answer to the peer's query makes a link that is valid when it has echoed a probe of
// ours: that went to the peer's address, and only its reader knows the cookie. To know the
// Q_Key shows nothing: it is the same for all peers of a port. The peer's answer to our query
// makes a link that is valid at once: it repeats our nonce. Datagrams are taken from valid
// links. The resolve.Resolver says by which one they are sent.
type link struct {
	addrPair
	port    *port
	peer    *peer
	kind    negotiate.CarrierKind // of the peer's device
	qpn     uint32
	qkey    uint32
	newKey  uint32       // of an unproven query: perhaps of the peer after a restart; 0: none
	at      verbs.AHAttr // of the peer
	ah      verbs.AH     // nil: nothing was sent there yet
	job     *handleJob   // makes ah; nil: none does
	failed  time.Time    // when ah could not be made
	mtu     int
	gateway [16]byte // of the peer
	valid   bool
	since   time.Time // the last time it was made known
	refused time.Time // when the peer was told that nothing gets in here
	fullAt  time.Time // since then there has been no room; zero: there is
	ids     pieceIDs
	asm     reassembly

	proof      uint64 // being proved, 0: none
	cookie     uint64
	asked      time.Time // when a probe of ours was to make it valid
	unanswered []byte    // a probe that waits for ah
}

func (l *link) key() linkKey { return linkKey{addrPair: l.addrPair, qpn: l.qpn} }

// carrier names what the link goes by.
func (l *link) carrier() report.Carrier { return report.Carrier(l.port.kind.String()) }

// prove sends a probe of a full packet; its echo is the proof of that number. False
// means that the peer cannot be reached.
func (l *link) prove(proof uint64) bool {
	if l.ah == nil && l.barren() {
		return false
	}
	l.proof = proof
	l.probe(l.mtu)
	return true
}

// probe sends a probe of n bytes. When all slots are in use it is as if it were
// lost.
func (l *link) probe(n int) {
	var b [cookieLen]byte
	binary.BigEndian.PutUint64(b[:], l.proof)
	binary.BigEndian.PutUint64(b[8:], l.cookie)
	l.control(controlProbe, b[:], n)
}

// control sends a control message, filled up with zeros to n bytes. It reports whether there was room.
func (l *link) control(kind uint8, msg []byte, n int) bool {
	e := l.port.e
	slot, ok := e.out.take()
	if !ok {
		return false
	}
	b := e.out.bytes(slot)
	n = max(n, len(msg))
	clear(b[copy(b, msg):n])
	sent := l.port.sendControl(l, slot, kind, n)
	if !sent {
		e.out.put(slot)
	}
	return sent
}

// askEvery is how often a peer is asked at most to make its link valid. Two links that
// are not would ask each other without an end.
const askEvery = 100 * time.Millisecond

// answer answers a probe, or has it wait for the handle. A link that is not valid asks before
// it echoes: what the peer sends after the echo comes after its answer.
func (l *link) answer(msg []byte) {
	if !l.handle() {
		if l.job != nil {
			l.unanswered = append(l.unanswered[:0], msg...)
		}
		return
	}
	if e := l.port.e; !l.valid && e.now.Sub(l.asked) >= askEvery {
		l.asked = e.now
		l.probe(cookieLen)
	}
	l.echo(msg)
}

// echo sends a probe back. A gateway that was started again can have a queue pair
// with the same number: one of two answers has its key then.
func (l *link) echo(msg []byte) {
	l.control(controlEcho, msg, 0)
	if old := l.qkey; l.newKey != 0 {
		l.qkey = l.newKey
		l.control(controlEcho, msg, 0)
		l.qkey = old
	}
}

// onEcho takes what came back of this link's probes, and tells whether it was
// one. Its cookie was read at the peer's address.
func (l *link) onEcho(msg []byte) bool {
	if len(msg) < cookieLen || binary.BigEndian.Uint64(msg[8:]) != l.cookie {
		return false
	}
	l.valid = true
	if l.proof != 0 && binary.BigEndian.Uint64(msg) == l.proof && len(msg) == l.mtu {
		e, proof := l.port.e, l.proof
		l.proof = 0
		e.act(e.resolve.Proved(l.remote, proof, true, e.now))
	}
	return true
}

// way is what this host has for a pair of addresses: a port, and how the
// peer reaches it.
type way struct {
	port  *port
	gid   uint8 // of the local address, on a network
	class uint8 // traffic class of packets
	level uint8 // service level of packets
	offer resolve.UDOffer
}

// gone reports whether the way has ended: also one by memory that the device has taken back,
// of which a port that has not begun hears nothing.
func (w way) gone() bool { return w.port.is(portGone) || w.port.shm != nil && w.port.shm.Err() != nil }

// reaches reports whether the port can talk to a queue pair of a peer.
func (w *way) reaches(o *resolve.UDOffer) bool {
	if o.Mixed {
		return w.offer.Mixed && w.port.kind != o.Kind
	}
	return w.port.kind == o.Kind && w.offer.Key == o.Key
}

// address returns how to reach a peer's queue pair by this way.
func (w *way) address(o *resolve.UDOffer) verbs.AHAttr {
	if w.port.shm != nil {
		return verbs.AHAttr{Port: 1}
	}
	return verbs.AHAttr{DGID: o.GID, UDPPort: o.UDPPort, SGIDIndex: w.gid, HopLimit: 64, TrafficClass: w.class, SL: w.level, Port: 1}
}
