package resolution

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// Times of resolution. Nothing here runs by itself: times are checked when there is a datagram to send, so an idle
// socket causes no traffic.
const (
	// RefreshAfter is how long datagrams are sent to a silent queue pair before it is asked again.
	RefreshAfter = time.Second
	// staleAfter is how long information about a peer is trusted without sending to it.
	staleAfter = 30 * time.Second
	// AnswerTime is how long an answer may take; the queue pair is still used meanwhile.
	AnswerTime = 500 * time.Millisecond
	// answerEvery is the minimum interval of answers to a peer that repeats the same question.
	answerEvery = 20 * time.Millisecond
	// The pause between two probes of a path that does not echo doubles up to the maximum.
	minProbePause = 100 * time.Millisecond
	maxProbePause = 10 * time.Second
)

// Way is how a datagram goes to its destination.
type Way uint8

const (
	Plain Way = iota // over UDP without a header
	Data             // over UDP after a ds_udp_header, which asks for the peer's queue pair
	UD               // over a UD queue pair after a ds_header
)

// Path is our end of the path to a destination.
type Path struct {
	Dev    int        // index of the device, -1: none
	Source netip.Addr // our address as the destination sees it
	OOB    []byte     // control message to send UDP datagrams from Source; nil: not needed
	Most   int        // maximum size of a message on the device
}

// Devices is what resolution must know of its host. Its methods are called with the table locked and must not call
// back.
type Devices interface {
	// Path returns our end of the path to remote. local is the address that remote has written to; if it is the zero Addr,
	// routing decides.
	Path(local netip.Addr, remote netip.AddrPort) Path
	// QPN returns the number of the device's queue pair, or 0 if it has none any more.
	QPN(dev int) uint32
}

// destState is how a destination is reached.
type destState uint8

const (
	destAsked    destState = iota // its queue pair is not known
	destProving                   // it is known, but has not echoed yet
	destResolved                  // datagrams go to the queue pair
	destPlain                     // the destination is not an rsocket
)

// destination is a socket address that datagrams are sent to.
//
//	     CTRL or DATA with a queue pair, then Made
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
// In asked and proving every datagram goes over UDP and asks, so peers that never answer and peers without devices are
// always reached that way, and nothing waits for an echo or an address handle.
type destination struct {
	addr  netip.AddrPort
	Path  Path
	state destState

	qpn    uint32 // the peer's, 0: not known
	want   uint64 // id of the Want for handle, 0: none is being made
	handle verbs.AH
	probes bool // the peer answers probes: it is a socket of this module

	heard     time.Time // when the queue pair was last heard of
	sending   time.Time // when the first datagram since then was sent there; zero: none was
	asked     time.Time // when we asked in state resolved; zero: no answer is due
	suspect   bool      // a message came from another queue pair
	refreshed time.Time // when we last asked in state resolved
	answered  time.Time // when we last answered
	told      uint32    // our queue pair in the last answer

	asking     bool // we have sent a question
	nextProbe  time.Time
	probePause time.Duration
	proven     int // size of the largest probe that was echoed

	newer, older *destination // list ordered by last use
}

// Decision says how to send one datagram.
type Decision struct {
	Way   Way
	Path  Path
	QPN   uint32 // Data: ours, for the header; UD: the peer's
	Probe int    // size of a probe to send to Peer over its queue pair, 0: none
	Peer  PeerQP
}

// PeerQP is a queue pair to send to.
type PeerQP struct {
	Dev    int
	QPN    uint32
	Handle verbs.AH
	Source netip.Addr
}

func (d *destination) peer() PeerQP {
	return PeerQP{Dev: d.Path.Dev, QPN: d.qpn, Handle: d.handle, Source: d.Path.Source}
}

// IsPlain reports whether datagrams to an address are sent without a header.
func (t *Table) IsPlain(to netip.AddrPort) bool {
	if forMany(to.Addr()) {
		return true
	}
	d := t.known[to]
	return d == nil && t.plain || d != nil && d.state == destPlain
}

// Send decides how to send a datagram.
func (t *Table) Send(now time.Time, to netip.AddrPort) Decision {
	if forMany(to.Addr()) {
		return Decision{Way: Plain, Path: Path{Dev: -1}}
	}
	d := t.get(to, netip.Addr{})
	if d.state == destPlain {
		return Decision{Way: Plain, Path: d.Path}
	}
	if d.state == destResolved {
		d.checkAnswer(now, t)
	}
	if d.state == destResolved {
		if !d.refresh(now) {
			if d.sending.IsZero() {
				d.sending = now
			}
			return Decision{Way: UD, Path: d.Path, QPN: d.qpn, Peer: d.peer()}
		}
		t.Stats.Refreshed++
		d.asked, d.refreshed, d.suspect = now, now, false
		d.nextProbe, d.probePause = now, minProbePause
	}
	d.asking = true
	return Decision{Way: Data, Path: d.Path, QPN: t.devices.QPN(d.Path.Dev), Probe: d.probe(now), Peer: d.peer()}
}

// forMany reports whether an address is multicast or broadcast; such addresses have no queue pair.
func forMany(a netip.Addr) bool { return a.IsMulticast() || a == limitedBroadcast }

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// checkAnswer drops a queue pair if the question for it was not answered in time, or our device is gone.
func (d *destination) checkAnswer(now time.Time, t *Table) {
	switch {
	case t.devices.QPN(d.Path.Dev) == 0:
		d.forgetPeer()
	case d.asked.IsZero() || now.Sub(d.asked) < AnswerTime:
	case d.probes:
		t.Stats.Lost++
		d.prove(now)
	default:
		t.Stats.Lost++
		d.forgetPeer()
	}
}

// refresh reports whether it is time to ask again.
func (d *destination) refresh(now time.Time) bool {
	if !d.asked.IsZero() {
		return false
	}
	return d.suspect && now.Sub(d.refreshed) >= RefreshAfter || now.Sub(d.heard) >= staleAfter || !d.sending.IsZero() && now.Sub(d.sending) >= RefreshAfter
}

// probe returns the size of a probe to send now, or 0. Until the peer has echoed, probes have the minimum size: a
// message with a forged source must not make us send more to that source than the message had.
func (d *destination) probe(now time.Time) int {
	if !d.probes || d.handle == nil || now.Before(d.nextProbe) {
		return 0
	}
	d.nextProbe = now.Add(d.probePause)
	d.probePause = min(2*d.probePause, maxProbePause)
	if d.proven == 0 {
		return 1
	}
	return d.Path.Most
}

// prove enters state proving, in which the peer is asked for echoes.
func (d *destination) prove(now time.Time) {
	d.state = destProving
	d.asked, d.sending, d.suspect, d.proven = time.Time{}, time.Time{}, false, 0
	d.nextProbe, d.probePause = now, minProbePause
}

// forgetPeer returns to state asked.
func (d *destination) forgetPeer() {
	if d.handle != nil {
		_ = d.handle.Close()
	}
	d.state, d.handle, d.qpn, d.want = destAsked, nil, 0, 0
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// hear records that the peer's queue pair works, or with a stock peer that it exists.
func (d *destination) hear(now time.Time) {
	d.heard = now
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// UDPEvent is the result of a UDP datagram.
type UDPEvent struct {
	Payload []byte // to deliver, nil: nothing
	Answer  bool   // send a CTRL with QPN from Path
	QPN     uint32
	Probe   int // as in Decision
	Path    Path
	Peer    PeerQP
	Plain   bool  // Payload came without a header
	Want    *Want // a handle to make and pass to Made, nil: none
}

// Want is an address handle that a destination needs. Making one may take seconds; the table does not wait, and the
// destination gets its datagrams over UDP meanwhile.
type Want struct {
	Addr netip.AddrPort // of the destination
	Path Path
	id   uint64
}

// Wanted reports whether the destination still needs the handle.
func (t *Table) Wanted(w *Want) bool {
	d := t.known[w.Addr]
	return d != nil && d.want == w.id
}

// Made takes a wanted handle, or the error of making it, and returns what to send. It closes a handle that is not
// needed any more. After an error, the peer's next message asks for a handle again.
func (t *Table) Made(now time.Time, w *Want, handle verbs.AH, err error) (ev UDEvent) {
	if !t.Wanted(w) {
		if err == nil {
			_ = handle.Close()
		}
		return ev
	}
	d := t.known[w.Addr]
	if err != nil {
		t.Stats.Unresolvable++
		d.forgetPeer()
		return ev
	}
	t.Stats.Resolved++
	d.want, d.handle = 0, handle
	d.hear(now)
	d.prove(now)
	if !d.probes {
		d.state = destResolved
	} else if d.asking {
		ev.Probe = d.probe(now)
	}
	ev.Peer = d.peer()
	return ev
}

// ReceiveUDP handles a datagram that came over UDP from a peer to the address local. payload is part of b.
func (t *Table) ReceiveUDP(now time.Time, from netip.AddrPort, local netip.Addr, b []byte) UDPEvent {
	h, payload, err := rsocket.ParseResolveHeader(b)
	if err != nil {
		d := t.get(from, local)
		if d.state != destPlain {
			d.forgetPeer()
			d.state = destPlain
		}
		return UDPEvent{Payload: b, Plain: true}
	}
	d := t.get(from, local)
	want := d.learn(now, t, local, &h)
	ev := UDPEvent{Path: d.Path, Peer: d.peer(), Want: want}
	if h.Op != rsocket.ResolveData {
		if d.state == destProving && d.asking {
			ev.Probe = d.probe(now)
		}
		return ev
	}
	ev.Payload = payload
	// A peer without a queue pair needs no answer. If we have none, we do not answer: a stock peer would send to queue
	// pair 0.
	ev.QPN = t.devices.QPN(d.Path.Dev)
	if h.QPN != 0 && ev.QPN != 0 && (ev.QPN != d.told || now.Sub(d.answered) >= answerEvery) {
		d.answered, d.told, ev.Answer = now, ev.QPN, true
	}
	return ev
}

// learn records what a message between rsockets says about its sender, and returns the handle to make for it.
func (d *destination) learn(now time.Time, t *Table, local netip.Addr, h *rsocket.ResolveHeader) *Want {
	if d.state == destPlain {
		d.state = destAsked
	}
	d.move(t, local)
	if h.QPN == 0 || t.devices.QPN(d.Path.Dev) == 0 {
		d.forgetPeer()
		return nil
	}
	if d.qpn == h.QPN && d.probes == h.Probes {
		if h.Op == rsocket.ResolveCtrl && !d.probes {
			d.hear(now)
		}
		return nil
	}
	d.forgetPeer()
	t.wants++
	d.told, d.qpn, d.probes, d.want = 0, h.QPN, h.Probes, t.wants
	return &Want{Addr: d.addr, Path: d.Path, id: d.want}
}

// move records that the peer writes to another address of ours. The old handle does not fit it.
func (d *destination) move(t *Table, local netip.Addr) {
	if !local.IsValid() || d.Path.Source == local {
		return
	}
	d.Path = t.devices.Path(local, d.addr)
	d.forgetPeer()
}

// Control is the immediate of a control message on a UD queue pair. Control messages are sent only to peers that
// declared to understand them.
type Control uint32

// The controls: a probe is answered with an echo.
const (
	Probe Control = 1
	Echo  Control = 2
)

// Message is a message received by queue pair.
type Message struct {
	Dev     int
	QPN     uint32         // the sender's queue pair
	From    netip.AddrPort // the sending socket
	Local   netip.Addr     // the address it was sent to, the zero Addr if the device does not say
	Control Control        // 0: a datagram, to be delivered
	Size    int            // Probe: size of the message; Echo: size of the echoed probe
}

// UDEvent says what to send: an echo of a probe of that size, or a probe of that size, to Peer; 0: none.
type UDEvent struct {
	Echo, Probe int
	Peer        PeerQP
}

// ReceiveUD handles a message from a queue pair.
func (t *Table) ReceiveUD(now time.Time, m *Message) (ev UDEvent) {
	d := t.known[m.From]
	if d == nil || d.Path.Dev != m.Dev || d.handle == nil {
		return ev
	}
	if d.qpn != m.QPN {
		d.suspect = d.state == destResolved
		return ev
	}
	t.use(d)
	d.move(t, m.Local)
	if d.handle == nil {
		return ev
	}
	ev.Peer = d.peer()
	switch {
	case m.Control == Probe:
		ev.Echo = m.Size
	case m.Control == Echo && d.state == destProving && d.probes:
		if d.proven = max(d.proven, m.Size); d.proven >= d.Path.Most {
			t.Stats.Proven++
			d.state = destResolved
			break
		}
		d.nextProbe = now
		ev.Probe = d.probe(now)
	}
	if d.state == destResolved {
		d.hear(now)
	}
	return ev
}
