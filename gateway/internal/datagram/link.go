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

// cookieLen is the length of the cookie at the start of a probe: the number of the proof and
// 8 random bytes.
const cookieLen = 16

// addrPair holds the addresses of this host and of a peer. IPv4 is unmapped.
type addrPair struct{ local, remote netip.Addr }

// linkKey identifies the link on which a packet came.
type linkKey struct {
	addrPair
	qpn uint32
}

// link is a path to a peer and back: a local port and a queue pair of the peer, for one pair
// of addresses.
//
// When this gateway answers a query of the peer, the link becomes valid once the peer has
// echoed a probe: the probe went to the peer's address, and only its reader knows the cookie.
// Knowing the Q_Key proves nothing, since it is the same for all peers of a port. When the
// peer answers a query of this gateway, the link is valid at once, since the answer repeats
// the nonce. Datagrams are accepted only from valid links. The resolve.Resolver decides which
// link is used for sending.
type link struct {
	addrPair
	port    *port
	peer    *peer
	kind    negotiate.CarrierKind // of the peer's device
	qpn     uint32
	qkey    uint32
	newKey  uint32       // Q_Key from an unproven query: perhaps the peer has restarted; 0: none
	at      verbs.AHAttr // of the peer
	ah      verbs.AH     // nil: nothing has been sent there yet
	job     *handleJob   // makes ah; nil: none in progress
	failed  time.Time    // when making ah failed
	mtu     int
	gateway [16]byte // of the peer
	valid   bool
	since   time.Time // when it was last announced
	refused time.Time // when the peer was told that nothing can be delivered here
	fullAt  time.Time // since when there has been no room; zero: there is room
	ids     pieceIDs
	asm     reassembly

	proof      uint64 // proof in progress; 0: none
	cookie     uint64
	asked      time.Time // when a probe was last sent to make it valid
	unanswered []byte    // a probe waiting for ah
}

func (l *link) key() linkKey { return linkKey{addrPair: l.addrPair, qpn: l.qpn} }

// carrier names the carrier of the link.
func (l *link) carrier() report.Carrier { return report.Carrier(l.port.kind.String()) }

// prove sends a probe of a full packet, whose echo completes the proof with that number. It
// returns false if the peer cannot be reached.
func (l *link) prove(proof uint64) bool {
	if l.ah == nil && l.barren() {
		return false
	}
	l.proof = proof
	l.probe(l.mtu)
	return true
}

// probe sends a probe of n bytes. If all slots are in use, the probe is dropped as if lost.
func (l *link) probe(n int) {
	var b [cookieLen]byte
	binary.BigEndian.PutUint64(b[:], l.proof)
	binary.BigEndian.PutUint64(b[8:], l.cookie)
	l.control(controlProbe, b[:], n)
}

// control sends a control message, padded with zeros to n bytes. It reports whether there was
// room.
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

// askEvery limits how often a peer is probed to make its link valid. Without it, two links
// that are not valid would probe each other endlessly.
const askEvery = 100 * time.Millisecond

// answer answers a probe, or stores it until the handle is made. A link that is not valid
// sends its own probe before the echo, so that the peer answers that probe before it sends
// anything else.
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

// echo sends a probe back. A restarted gateway can have a queue pair with the same number but
// another Q_Key, so the echo is sent with both keys if two are known.
func (l *link) echo(msg []byte) {
	l.control(controlEcho, msg, 0)
	if old := l.qkey; l.newKey != 0 {
		l.qkey = l.newKey
		l.control(controlEcho, msg, 0)
		l.qkey = old
	}
}

// onEcho handles an echo and reports whether it answers a probe of this link. Its cookie can
// only have been read at the peer's address.
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

// way is what this host has for a pair of addresses: a port, and how the peer reaches it.
type way struct {
	port  *port
	gid   uint8 // of the local address, on a network
	class uint8 // traffic class of packets
	level uint8 // service level of packets
	offer resolve.UDOffer
}

// gone reports whether the way has ended. This includes memory that the device has taken
// back, which a port that has not started is not told about.
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

const (
	// handleAgain is how soon a failed address handle is retried: the kernel waits a second
	// for the link address of a host that does not answer.
	handleAgain = 10 * time.Second
	// handlesAtOnce bounds the handles being made, separately for valid links and for others,
	// so that a host that queries in the name of many others does not delay hosts that have
	// answered.
	handlesAtOnce = 8
)

// handleJob is an address handle being made. Its goroutine ends with the shard's answer.
type handleJob struct {
	of    *link
	at    verbs.AHAttr
	valid bool // counted with those of valid links
}

// making counts the handles being made, for valid links and for others.
type making struct{ valid, other int }

// of returns the counter that a job belongs to.
func (m *making) of(valid bool) *int {
	if valid {
		return &m.valid
	}
	return &m.other
}

// handle reports whether the address handle of the peer exists; if not, it starts making one
// on a goroutine. Handles are made only when something is to be sent, so a host that merely
// sends queries causes none.
func (l *link) handle() bool {
	e := l.port.e
	if l.ah != nil || l.job != nil || l.barren() {
		return l.ah != nil
	}
	n := e.making.of(l.valid)
	if *n >= handlesAtOnce {
		return false
	}
	*n++
	j := &handleJob{of: l, at: l.at, valid: l.valid}
	l.job = j
	l.port.beside.Go(j.run)
	return false
}

// barren reports whether making the handle failed recently.
func (l *link) barren() bool { return l.port.e.now.Sub(l.failed) < handleAgain }

// run makes the handle, and closes it if the link no longer wants it.
func (j *handleJob) run() {
	p := j.of.port
	ah, err := p.pd.CreateAH(j.at)
	taken := false
	p.e.s.Call(func() {
		*p.e.making.of(j.valid)--
		if j.of.job == j && !p.e.stopped {
			j.of.job, taken = nil, err == nil
			j.of.made(ah, err)
		}
	})
	if err == nil && !taken {
		_ = ah.Close()
	}
}

// made receives the handle and sends what was waiting for it.
func (l *link) made(ah verbs.AH, err error) {
	e := l.port.e
	msg := l.unanswered
	l.unanswered = nil
	if err != nil {
		l.failed = e.now
		e.log.Debug("address handle", "peer", l.remote, "carrier", l.port.kind, "error", err)
		if proof := l.proof; proof != 0 {
			l.proof = 0
			e.act(e.resolve.Proved(l.remote, proof, false, e.now))
		}
		return
	}
	l.ah = ah
	if l.proof != 0 {
		l.probe(l.mtu)
	}
	if msg != nil {
		l.answer(msg)
	}
}

// forgetHandle closes the handle on a goroutine, since an adapter may take long.
func (l *link) forgetHandle() {
	if ah := l.ah; ah != nil {
		l.port.beside.Go(func() { _ = ah.Close() })
	}
	l.ah, l.job, l.unanswered, l.failed = nil, nil, nil, time.Time{}
}
