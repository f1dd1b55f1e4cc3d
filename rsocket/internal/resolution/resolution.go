package resolution

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
	RefreshAfter = time.Second
	// staleAfter is how long what was heard of a peer is believed without sending to it.
	staleAfter = 30 * time.Second
	// answerTime is how long an answer may take. Until then the queue pair is used.
	AnswerTime = 500 * time.Millisecond
	// answerEvery bounds the answers to one peer that asks the same again.
	answerEvery = 20 * time.Millisecond
	// The pause between two probes of a path that does not echo doubles up to the maximum.
	minProbePause = 100 * time.Millisecond
	maxProbePause = 10 * time.Second
)

// Way is how a datagram goes to its destination.
type Way uint8

const (
	Plain Way = iota // over UDP as it is
	Data             // over UDP after a ds_udp_header, which asks for the peer's queue pair
	UD               // over a UD queue pair after a ds_header
)

// Path is our end of the way to a destination.
type Path struct {
	Dev    int        // which device, -1: none
	Source netip.Addr // our address as the destination sees it
	OOB    []byte     // makes UDP datagrams come from it; nil: they do anyway
	Most   int        // bytes of a message on the device
}

// Devices are what resolution must know of its host. Its methods are called with the table locked and do not call
// back.
type Devices interface {
	// Path finds our end of the way to remote. local is the address remote has written to; if it is the zero Addr,
	// routing decides.
	Path(local netip.Addr, remote netip.AddrPort) Path
	// QPN is the number of the device's queue pair, 0 if it has none (any more).
	QPN(dev int) uint32
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
// In asked and proving every datagram goes over UDP and asks, so a peer that never answers and one without devices are
// reached that way for good, and nothing waits: neither for the echo nor for the address handle.
type destination struct {
	addr  netip.AddrPort
	Path  Path
	state destState

	qpn    uint32 // of the peer, 0: not known
	want   uint64 // the handle that is to be made, 0: none is
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

// Decision is how one datagram is to be sent.
type Decision struct {
	Way   Way
	Path  Path
	QPN   uint32 // Data: ours, for the header; UD: the peer's
	Probe int    // bytes of a probe to send to peer over the queue pair, 0: none
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

// IsPlain tells whether datagrams go to an address as they are.
func (t *Table) IsPlain(to netip.AddrPort) bool {
	if forMany(to.Addr()) {
		return true
	}
	d := t.known[to]
	return d == nil && t.plain || d != nil && d.state == destPlain
}

// Send decides about a datagram.
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

// forMany tells whether an address is that of many; they have no queue pair.
func forMany(a netip.Addr) bool { return a.IsMulticast() || a == limitedBroadcast }

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// checkAnswer gives up a queue pair when the question for it was not answered in time, or its device is gone.
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

// refresh tells whether it is time to ask again.
func (d *destination) refresh(now time.Time) bool {
	if !d.asked.IsZero() {
		return false
	}
	return d.suspect && now.Sub(d.refreshed) >= RefreshAfter || now.Sub(d.heard) >= staleAfter || !d.sending.IsZero() && now.Sub(d.sending) >= RefreshAfter
}

// probe tells whether to send one, and how large it is. Until the peer has echoed, it is as small as can be: a message
// with a forged source must not make us send more to that source than the message had.
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
	d.state, d.handle, d.qpn, d.want = destAsked, nil, 0, 0
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// hear notes that the peer's queue pair works, or with a stock peer that it exists.
func (d *destination) hear(now time.Time) {
	d.heard = now
	d.asked, d.sending, d.suspect = time.Time{}, time.Time{}, false
}

// UDPEvent is what came of a UDP datagram.
type UDPEvent struct {
	Payload []byte // deliver it, nil: nothing
	Answer  bool   // send a CTRL with qpn from path
	QPN     uint32
	Probe   int // as in Decision
	Path    Path
	Peer    PeerQP
	Plain   bool  // the payload came without a header
	Want    *Want // a handle to make for Made, nil: none
}

// Want is an address handle that a destination needs. To make one may take seconds: the table goes on meanwhile, and the
// destination gets its datagrams over UDP.
type Want struct {
	Addr netip.AddrPort // of the destination
	Path Path
	id   uint64
}

// Wanted tells whether the destination still needs the handle.
func (t *Table) Wanted(w *Want) bool {
	d := t.known[w.Addr]
	return d != nil && d.want == w.id
}

// Made takes a handle that was wanted, or why there is none. What the destination does not need any more is closed; what
// could not be made is wanted again by the peer's next message. It returns what to send.
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
	// A peer without a queue pair has no use for an answer. Without a queue pair of ours there is no answer to give: a
	// stock peer would send to queue pair 0.
	ev.QPN = t.devices.QPN(d.Path.Dev)
	if h.QPN != 0 && ev.QPN != 0 && (ev.QPN != d.told || now.Sub(d.answered) >= answerEvery) {
		d.answered, d.told, ev.Answer = now, ev.QPN, true
	}
	return ev
}

// learn takes over what a message between rsockets says of its sender, and returns the handle that is to be made for it.
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

// move takes over the address that the peer writes to. The handle was for another one.
func (d *destination) move(t *Table, local netip.Addr) {
	if !local.IsValid() || d.Path.Source == local {
		return
	}
	d.Path = t.devices.Path(local, d.addr)
	d.forgetPeer()
}

// Control is the immediate of a message on a UD queue pair that is no datagram. They are sent to peers only that have
// said so.
type Control uint32

// The controls: a probe is answered with an echo.
const (
	Probe Control = 1
	Echo  Control = 2
)

// Message is a message that came from a queue pair.
type Message struct {
	Dev     int
	QPN     uint32         // it came from
	From    netip.AddrPort // the socket it is of
	Local   netip.Addr     // it was sent to, the zero Addr if the device does not say
	Control Control        // 0: a datagram, to be delivered
	Size    int            // Probe: of it; Echo: of the probe
}

// UDEvent is what to send for a message: an echo of a probe of that size, or a probe.
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
