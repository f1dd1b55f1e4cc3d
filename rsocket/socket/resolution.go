package socket

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// How long resolution waits for what. Nothing here runs on its own: all of it is looked at when there is a datagram to
// send, so a socket that sends nothing causes no traffic.
const (
	// refreshAfter is how long datagrams are sent to a queue pair that is not heard of.
	refreshAfter = time.Second
	// staleAfter is how long what was heard of a peer is believed without sending to it.
	staleAfter = 30 * time.Second
	// answerTime is how long an answer may take. Until then the queue pair is used.
	answerTime = 500 * time.Millisecond
	// answerEvery bounds the answers to one peer that asks the same again.
	answerEvery = 20 * time.Millisecond
	// The pause between two probes of a path that does not echo doubles up to the maximum.
	minProbePause = 100 * time.Millisecond
	maxProbePause = 10 * time.Second
)

// way is how a datagram goes to its destination.
type way uint8

const (
	wayPlain way = iota // over UDP as it is
	wayData             // over UDP behind a ds_udp_header, which asks for the peer's queue pair
	wayUD               // over a UD queue pair behind a ds_header
)

// localPath is our end of the way to a destination.
type localPath struct {
	dev    int        // which device, -1: none
	source netip.Addr // our address as the destination sees it
	oob    []byte     // makes UDP datagrams come from it; nil: they do anyway
	most   int        // bytes of a message on the device
}

// surroundings is what resolution must know of its host. Its methods are called with the table locked and do not call
// back.
type surroundings interface {
	// path finds our end of the way to remote. local is the address remote has written to; if it is the zero Addr,
	// routing decides.
	path(local netip.Addr, remote netip.AddrPort) localPath
	// qpn is the number of the device's queue pair, 0 if it has none (any more).
	qpn(dev int) uint32
	// handle makes an address handle.
	handle(p localPath, remote netip.Addr) (verbs.AH, error)
}

// destState says how a destination is reached.
type destState uint8

const (
	destAsked    destState = iota // its queue pair is not known
	destProving                   // it is known, but no echo has come from there yet
	destResolved                  // datagrams go there
	destPlain                     // it is no rsocket
)

// destination is a socket address that datagrams are sent to.
//
//	             CTRL or DATA with a queue pair
//	asked ──────────────┬─────────────► proving ──── ECHO ────► resolved
//	  ▲                 │ stock peer                             ▲  │
//	  │                 └────────────────────────────────────────┘  │
//	  │    not heard of for 1 s of sending, after 30 s without sending, or heard from another queue pair: the next
//	  │    datagram asks again, and then within 500 ms                │
//	  │      - from a stock peer: no answer ─────────────► asked     │
//	  │      - from one of ours: neither ECHO nor data ──► proving ◄─┘
//	  │
//	  └── message between rsockets ── plain ◄── plain datagram from there ── any
//
//	any ── another queue pair in CTRL or DATA ──► proving, or with a stock peer resolved; queue pair 0 ──► asked
//
// In asked and proving every datagram goes over UDP and asks, so a peer that never answers and one without devices are
// reached that way for good, and nothing waits.
type destination struct {
	addr  netip.AddrPort
	path  localPath
	state destState

	qpn    uint32 // of the peer, 0: not known
	handle verbs.AH
	probes bool // the peer answers probes: it is one of ours

	heard     time.Time // when the queue pair was heard of last
	sending   time.Time // when the first datagram since went there; zero: none did
	asked     time.Time // when we asked in resolved, zero: no answer is due
	suspect   bool      // heard from another queue pair
	refreshed time.Time // when we asked in resolved last
	answered  time.Time // when we answered last
	told      uint32    // our queue pair in that answer

	asking     bool // we have sent a question
	nextProbe  time.Time
	probePause time.Duration
	proven     int // bytes of the largest message that was echoed

	newer, older *destination // by use
}

// decision is how one datagram is to be sent.
type decision struct {
	way   way
	path  localPath
	qpn   uint32 // wayData: ours, for the header; wayUD: the peer's
	probe int    // bytes of a probe to send to peer over the queue pair, 0: none
	peer  peerQP
}

// peerQP is a queue pair to send to.
type peerQP struct {
	dev    int
	qpn    uint32
	handle verbs.AH
	source netip.Addr
}

func (d *destination) peer() peerQP {
	return peerQP{dev: d.path.dev, qpn: d.qpn, handle: d.handle, source: d.path.source}
}

// isPlain tells whether datagrams go to an address as they are.
func (t *destinations) isPlain(to netip.AddrPort) bool {
	if forMany(to.Addr()) {
		return true
	}
	d := t.known[to]
	return d == nil && t.plain || d != nil && d.state == destPlain
}

// send decides about a datagram.
func (t *destinations) send(now time.Time, to netip.AddrPort) decision {
	if forMany(to.Addr()) {
		return decision{way: wayPlain, path: localPath{dev: -1}}
	}
	d := t.get(to, netip.Addr{})
	if d.state == destPlain {
		return decision{way: wayPlain, path: d.path}
	}
	if d.state == destResolved {
		d.checkAnswer(now, t)
	}
	if d.state == destResolved {
		if !d.refresh(now) {
			if d.sending.IsZero() {
				d.sending = now
			}
			return decision{way: wayUD, path: d.path, qpn: d.qpn, peer: d.peer()}
		}
		t.stats.Refreshed++
		d.asked, d.refreshed, d.suspect = now, now, false
		d.nextProbe, d.probePause = now, minProbePause
	}
	d.asking = true
	return decision{way: wayData, path: d.path, qpn: t.host.qpn(d.path.dev), probe: d.probe(now), peer: d.peer()}
}

// forMany tells whether an address is that of many; they have no queue pair.
func forMany(a netip.Addr) bool { return a.IsMulticast() || a == limitedBroadcast }

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// checkAnswer gives up a queue pair when the question for it was not answered in time, or its device is gone.
func (d *destination) checkAnswer(now time.Time, t *destinations) {
	switch {
	case t.host.qpn(d.path.dev) == 0:
		d.forgetPeer()
	case d.asked.IsZero() || now.Sub(d.asked) < answerTime:
	case d.probes:
		t.stats.Lost++
		d.prove(now)
	default:
		t.stats.Lost++
		d.forgetPeer()
	}
}

// refresh tells whether it is time to ask again.
func (d *destination) refresh(now time.Time) bool {
	if !d.asked.IsZero() {
		return false
	}
	return d.suspect && now.Sub(d.refreshed) >= refreshAfter || now.Sub(d.heard) >= staleAfter || !d.sending.IsZero() && now.Sub(d.sending) >= refreshAfter
}

// probe tells whether to send one, and how large it is. Until the peer has echoed it is as small as can be: who says in
// somebody else's name that he is a peer must not make us send more there than he sent.
func (d *destination) probe(now time.Time) int {
	if !d.probes || d.handle == nil || now.Before(d.nextProbe) {
		return 0
	}
	d.nextProbe = now.Add(d.probePause)
	d.probePause = min(2*d.probePause, maxProbePause)
	if d.proven == 0 {
		return 1
	}
	return d.path.most
}

// prove begins to ask for an echo.
func (d *destination) prove(now time.Time) {
	d.state = destProving
	d.asked, d.sending, d.suspect, d.proven = time.Time{}, time.Time{}, false, 0
	d.nextProbe, d.probePause = now, minProbePause
}

// forgetPeer goes back to asked.
func (d *destination) forgetPeer() {
	if d.handle != nil {
		_ = d.handle.Close()
	}
	d.state, d.handle, d.qpn = destAsked, nil, 0
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// hear notes that the peer's queue pair works, or with a stock peer that it exists.
func (d *destination) hear(now time.Time) {
	d.heard = now
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// udpEvent is what came of a UDP datagram.
type udpEvent struct {
	payload []byte // deliver it, nil: nothing
	answer  bool   // send a CTRL with qpn from path
	qpn     uint32
	probe   int // as in decision
	path    localPath
	peer    peerQP
	plain   bool // the payload came without a header
}

// receiveUDP handles a datagram that came over UDP from a peer to the address local. payload is part of b.
func (t *destinations) receiveUDP(now time.Time, from netip.AddrPort, local netip.Addr, b []byte) udpEvent {
	h, payload, err := rsocket.ParseResolveHeader(b)
	if err != nil {
		d := t.get(from, local)
		if d.state != destPlain {
			d.forgetPeer()
			d.state = destPlain
		}
		return udpEvent{payload: b, plain: true}
	}
	d := t.get(from, local)
	d.learn(now, t, local, &h)
	ev := udpEvent{path: d.path, peer: d.peer()}
	if h.Op != rsocket.ResolveData {
		if d.state == destProving && d.asking {
			ev.probe = d.probe(now)
		}
		return ev
	}
	ev.payload = payload
	// Who has no queue pair has no use for an answer, and from us without one none can be given: a stock peer would
	// send to queue pair 0.
	ev.qpn = t.host.qpn(d.path.dev)
	if h.QPN != 0 && ev.qpn != 0 && (ev.qpn != d.told || now.Sub(d.answered) >= answerEvery) {
		d.answered, d.told, ev.answer = now, ev.qpn, true
	}
	return ev
}

// learn takes over what a message between rsockets says of its sender.
func (d *destination) learn(now time.Time, t *destinations, local netip.Addr, h *rsocket.ResolveHeader) {
	if d.state == destPlain {
		d.state = destAsked
	}
	d.move(t, local)
	if h.QPN == 0 || t.host.qpn(d.path.dev) == 0 {
		d.forgetPeer()
		return
	}
	if d.qpn == h.QPN && d.probes == h.Probes {
		if h.Op == rsocket.ResolveCtrl && !d.probes {
			d.hear(now)
		}
		return
	}
	d.forgetPeer()
	handle, err := t.host.handle(d.path, d.addr.Addr())
	if err != nil {
		t.stats.Unresolvable++
		return
	}
	t.stats.Resolved++
	d.told, d.qpn, d.handle, d.probes = 0, h.QPN, handle, h.Probes
	d.hear(now)
	d.prove(now)
	if !d.probes {
		d.state = destResolved
	}
}

// move takes over the address that the peer writes to. What is known of its queue pair stays true on the same device.
func (d *destination) move(t *destinations, local netip.Addr) {
	if !local.IsValid() || d.path.source == local {
		return
	}
	dev := d.path.dev
	d.path = t.host.path(local, d.addr)
	if d.handle == nil {
		return
	}
	var handle verbs.AH
	if d.path.dev == dev {
		handle, _ = t.host.handle(d.path, d.addr.Addr())
	}
	if handle == nil {
		d.forgetPeer()
		return
	}
	_ = d.handle.Close()
	d.handle = handle
}

// udControl is the immediate of a message on a UD queue pair that is no datagram. They are sent to peers only that have
// said so.
type udControl uint32

const (
	udProbe udControl = 1 // to be answered with udEcho
	udEcho  udControl = 2
)

// udMessage is a message that came from a queue pair.
type udMessage struct {
	dev     int
	qpn     uint32         // it came from
	from    netip.AddrPort // the socket it is of
	local   netip.Addr     // it was sent to, the zero Addr if the device does not say
	control udControl      // 0: a datagram, to be delivered
	size    int            // udProbe: of it; udEcho: of the probe
}

// udEvent is what to send for a message: an echo of a probe of that size, or a probe.
type udEvent struct {
	echo, probe int
	peer        peerQP
}

// receiveUD handles a message from a queue pair.
func (t *destinations) receiveUD(now time.Time, m *udMessage) (ev udEvent) {
	d := t.known[m.from]
	if d == nil || d.path.dev != m.dev || d.handle == nil {
		return ev
	}
	if d.qpn != m.qpn {
		d.suspect = d.state == destResolved
		return ev
	}
	t.use(d)
	d.move(t, m.local)
	if d.handle == nil {
		return ev
	}
	ev.peer = d.peer()
	switch {
	case m.control == udProbe:
		ev.echo = m.size
	case m.control == udEcho && d.state == destProving && d.probes:
		if d.proven = max(d.proven, m.size); d.proven >= d.path.most {
			t.stats.Proven++
			d.state = destResolved
			break
		}
		d.nextProbe = now
		ev.probe = d.probe(now)
	}
	if d.state == destResolved {
		d.hear(now)
	}
	return ev
}
