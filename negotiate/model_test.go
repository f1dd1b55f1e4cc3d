package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// start lets the client begin; the server does with what comes first.
func (w *world) start() {
	w.after(127*time.Second, func() { w.appGone = w.appGone || !w.connected && !w.native })
	if w.odds(8, "application gives up") {
		w.after(w.step("application gives up"), func() { w.appGone = !w.connected && !w.native })
	}
	w.client(w.c.Start(w.cc.at(w.now), w.rtt))
	if w.faulty && w.odds(4, "wire breaks") {
		w.after(w.step("wire breaks"), w.cutWire)
	}
	if w.faulty && w.odds(6, "server dies") {
		w.after(w.step("server dies"), w.serverDies)
	}
	if w.odds(8, "client cancels") {
		w.after(w.step("client cancels"), func() {
			w.cancelled = true
			w.client(w.c.Cancel(w.cc.at(w.now), ReasonDrained))
		})
	}
	if w.odds(8, "server cancels") {
		w.after(w.step("server cancels"), w.serverCancels)
	}
}

// serverCancels ends the server's gateway in order: it waits a while for what its program has accepted.
func (w *world) serverCancels() {
	if w.started {
		w.ending = true
		w.server(w.s.Cancel(w.sc.at(w.now), ReasonDrained))
	}
}

// client executes the actions of the client.
func (w *world) client(todo []Action) {
	for _, a := range todo {
		require.Zero(w.t, w.clientEnd, "action %T after the end", a)
		switch a := a.(type) {
		case Send:
			w.clientSends(a.Bytes)
		case HandOver:
			w.handOver()
		case HandOverAgain:
			w.handOverAgain()
		case Prove:
			w.prove(a.Offer.Kind)
		case Carry:
			w.clientCarries(a.Carrier)
		case Records:
			require.Empty(w.t, a.Rest)
		case Release:
			require.False(w.t, w.appAccepted, "released what the application already has")
			w.clientEnd++
			w.released(a.Verdict)
			w.clientResets(true)
		case Abort:
			w.clientEnd++
			w.clientResets(false)
		default:
			w.t.Fatalf("client was told %T", a)
		}
	}
}

// released: an application that still waits connects natively.
func (w *world) released(v Verdict) {
	w.native = !w.appGone && !w.connected
	w.ending = w.ending || w.cancelled && w.answered
	end := w.cc.due(w.cc.at(t0).Add(budget(defaultHandshakeTimeout, w.rtt) + askTime))
	w.silent = !v.Remote && !w.answered && !w.now.Before(end.Add(-w.cc.late-time.Millisecond))
}

func (w *world) clientSends(b []byte) {
	h, _, err := ParseHeader(b)
	require.NoError(w.t, err)
	w.clientWords = append(w.clientWords, h.Type)
	w.transmit(&w.up, b, w.serverReads)
}

// serverReads: what comes first begins the server.
func (w *world) serverReads(b []byte) {
	if w.died { // its kernel answers
		w.inOrder(&w.down, w.clientLoses)
		return
	}
	if !w.started {
		w.started = true
		w.server(w.s.Start(w.sc.at(w.now), w.rtt, w.confirmed))
	}
	if !w.s.Reading() && !w.s.isDone() { // stays in the receive buffer
		w.after(time.Millisecond, func() { w.serverReads(b) })
		return
	}
	w.heard = true
	w.server(w.s.Receive(w.sc.at(w.now), b))
}

// isDone is for the model only: nothing more comes of the server.
func (s *Server) isDone() bool { return s.state == serverDone || s.state == serverCarried || s.cleared }

// handOver gives the application's SYN to the listener. It or what answers it may be lost.
func (w *world) handOver() {
	if w.appGone || w.odds(6, "SYN lost") {
		return
	}
	w.handed = true
	d := w.step("accept")
	if w.odds(6, "last ACK waits") {
		w.after(d, w.connects)
		d += time.Duration(rapid.IntRange(0, 120).Draw(w.t, "s")) * time.Second
	}
	w.after(d, func() {
		if w.connects(); w.appGone {
			return
		}
		w.appAccepted = w.clientEnd == 0
		w.client(w.c.AppAccepted(w.cc.at(w.now)))
	})
	if w.odds(4, "application ends") {
		w.after(d+w.step("application ends"), func() { w.client(w.c.AppFailed(w.cc.at(w.now))) })
	}
}

// connects: connect() returns, unless the connection has gone back.
func (w *world) connects() {
	w.connected = w.connected || !w.appGone && w.clientEnd == 0
}

func (w *world) handOverAgain() {
	switch {
	case w.appGone:
		w.after(0, func() { w.client(w.c.AppFailed(w.cc.at(w.now))) })
	case !w.handed:
		w.handOver()
	}
}

func (w *world) prove(k CarrierKind) {
	if w.odds(4, "connecting hangs") {
		return
	}
	w.after(w.quick("connecting"), func() {
		w.client(w.c.Proving(w.cc.at(w.now), k))
		if w.odds(4, "proof hangs") {
			return
		}
		ok := !w.odds(3, "proof fails")
		w.after(w.quick("proof"), func() {
			w.proven[k] = ok
			w.client(w.c.Proved(w.cc.at(w.now), k, ok))
		})
	})
}

// clientCarries sends a record after CONFIRM, and data on the queue pair, which may overtake it.
func (w *world) clientCarries(k CarrierKind) {
	require.True(w.t, w.appAccepted, "carrying without an application")
	require.Equal(w.t, k != CarrierRelay, w.proven[k], "carrying by %s", k)
	w.transmit(&w.up, []byte(modelRecords), w.serverReads)
	if k != CarrierRelay && rapid.Bool().Draw(w.t, "data") {
		w.after(w.quick("data"), func() { w.server(w.s.PeerData(w.sc.at(w.now), k)) })
	}
}

// clientResets: the RST follows the data; a lost one is found out by keepalive. A released application's SYN comes after.
func (w *world) clientResets(released bool) {
	if !w.faulty || !w.odds(3, "RST lost") {
		w.inOrder(&w.up, w.serverLoses)
	} else {
		w.after(10*time.Second, w.serverLoses)
	}
	if released {
		w.after(w.latency(), func() {
			if w.started {
				w.server(w.s.Released(w.sc.at(w.now)))
			}
		})
	}
}

// server executes the actions of the server.
func (w *world) server(todo []Action) {
	if w.died {
		return
	}
	for _, a := range todo {
		require.Zero(w.t, w.serverEnd, "action %T after the end", a)
		switch a := a.(type) {
		case Send:
			w.serverSends(a.Bytes)
		case Serve:
			w.serve(a.Proposal)
		case Dial:
			w.dial()
		case Undial:
			w.undial()
		case Drop:
			w.reserved = false
			require.True(w.t, w.accepts == 0, "declined what the program has accepted")
		case DialRaw:
			w.dialRaw()
		case RelayRaw:
			if rapid.Bool().Draw(w.t, "application speaks first") {
				w.transmit(&w.down, []byte("220 ready"), w.clientReads)
			}
		case Carry:
			require.True(w.t, w.reserved)
			w.reserved = false
		case Records:
			w.records = append(w.records, a.Rest...)
		case Abort:
			w.serverAborts(a)
		default:
			w.t.Fatalf("server was told %T", a)
		}
	}
}

func (w *world) serverSends(b []byte) {
	h, _, err := ParseHeader(b)
	require.NoError(w.t, err)
	w.serverWords = append(w.serverWords, h.Type)
	w.owes = len(b)
	w.transmit(&w.down, b, w.clientReads)
}

func (w *world) clientReads(b []byte) {
	w.owes -= len(b)
	w.answered = w.owes == 0
	w.client(w.c.Receive(w.cc.at(w.now), b))
}

func (w *world) serve(p *Proposal) {
	w.reserved, w.everServed = true, true
	d := w.step("reserve")
	if w.odds(8, "no room") {
		w.after(d, func() { w.server(w.s.Refused(w.sc.at(w.now), ReasonNoMemory)) })
		return
	}
	w.after(d, func() { w.server(w.s.Reserved(w.sc.at(w.now), Accept{Carriers: p.Carriers})) })
}

// dial: the program accepts, which the gateway learns a while later.
func (w *world) dial() {
	require.False(w.t, w.dialled, "dialled twice")
	w.dialled = true
	result := func(ok bool) {
		if !w.undone {
			w.server(w.s.Dialled(w.sc.at(w.now), ok, ReasonAppRefused))
		}
	}
	switch {
	case w.odds(6, "SYN of the dial lost"):
	case w.odds(6, "refused"):
		w.after(w.step("refused"), func() { result(false) })
	default:
		w.after(w.step("dial"), func() {
			if w.undone || w.serverEnd > 0 || w.died {
				return
			}
			w.accepts++
			w.after(w.step("wake"), func() { result(true) })
		})
	}
}

// undial gives up what the program has not accepted.
func (w *world) undial() {
	if w.accepts > 0 {
		return
	}
	w.undone = true
	w.after(0, func() { w.server(w.s.Dialled(w.sc.at(w.now), false, ReasonNone)) })
}

func (w *world) dialRaw() {
	require.False(w.t, w.rawDial)
	w.rawDial = true
	w.accepts++
	ok := !w.odds(3, "raw dial fails")
	w.after(w.step("raw dial"), func() { w.server(w.s.RawDialled(w.sc.at(w.now), ok, ReasonAppRefused)) })
}

func (w *world) serverAborts(a Abort) {
	w.serverEnd++
	w.reserved = false
	if a.Silent {
		return
	}
	require.True(w.t, w.heard || w.confirmed == ConfirmedNo, "reset before the client was heard")
	w.inOrder(&w.down, w.clientLoses)
}

// check is what must hold when everything has come to rest.
func (w *world) check() {
	cv, cok := w.c.Verdict()
	sv, sok := w.s.Verdict()
	require.True(w.t, cok, "client waits for ever in %s", w.c.Stage())
	require.True(w.t, sok || w.died || !w.started, "server waits for ever in %s", w.s.Stage())
	require.False(w.t, w.reserved, "reserved and forgotten")
	w.checkWords()
	w.checkAccepts(cv)
	if !w.mishap && !w.faulty && !w.strangers && w.confirmed != ConfirmedNo {
		require.Equal(w.t, Verdict{Outcome: OutcomeCarried, Carrier: CarrierSHM}, cv, "for no reason")
	}
	switch cv.Outcome {
	case OutcomeCarried:
		if !w.died {
			w.checkCarried(cv, sv)
		}
	case OutcomeReleased, OutcomeAborted:
		require.Equal(w.t, 1, w.clientEnd)
		if w.started && !w.died {
			require.Contains(w.t, []Outcome{OutcomeDeclined, OutcomeAborted}, sv.Outcome, "client %+v", cv)
			require.Equal(w.t, 1, w.serverEnd)
		}
	default:
		w.t.Fatalf("client ended %d", cv.Outcome)
	}
}

// checkAccepts: the program accepts at most one connection, and one exactly where connect() succeeds. It sees another one
// that is reset when the path was silent for two seconds more than a negotiation takes, or when a gateway has ended
// meanwhile; nothing else is an excuse.
func (w *world) checkAccepts(cv Verdict) {
	require.LessOrEqual(w.t, w.accepts, 1)
	require.False(w.t, w.native && w.connected)
	switch {
	case w.connected && !w.died && !w.broken:
		require.Equal(w.t, 1, w.accepts, "connect() has succeeded by the gateway: %+v", cv)
	case w.native && !w.silent && !w.died && !w.ending:
		require.Zero(w.t, w.accepts, "connect() succeeds natively, and the program has accepted before: %+v", cv)
	}
	if w.silent {
		require.True(w.t, w.broken || w.faulty)
	}
}

// checkCarried: both carry by the same carrier and nothing of the stream is lost, unless the path took longer than the
// protocol allows for or broke: then the server has ended the wire leg.
func (w *world) checkCarried(cv, sv Verdict) {
	if (w.faulty || w.ending) && sv.Outcome == OutcomeAborted {
		require.Equal(w.t, 1, w.serverEnd)
		return
	}
	require.Equal(w.t, OutcomeCarried, sv.Outcome, "server %+v", sv)
	require.Equal(w.t, cv.Carrier, sv.Carrier)
	if !w.broken {
		require.Equal(w.t, modelRecords, string(w.records))
	}
}

// checkWords: ACCEPT or DECLINE from the server, questions and one last word from the client, nothing else ever.
func (w *world) checkWords() {
	require.LessOrEqual(w.t, len(w.serverWords), 1)
	for _, word := range w.serverWords {
		require.Contains(w.t, []MessageType{TypeAccept, TypeDecline}, word)
	}
	require.Equal(w.t, TypeProposal, w.clientWords[0])
	rest := w.clientWords[1:]
	for len(rest) > 0 && rest[0] == TypeAsk {
		rest = rest[1:]
	}
	require.LessOrEqual(w.t, len(rest), 1)
	for _, word := range rest {
		require.Contains(w.t, []MessageType{TypeConfirm, TypeDecline}, word)
	}
}

// Both machines over a path that is as fast as it says: whatever the local steps do, both ends agree.
func TestHandshakeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, false, rapid.SampledFrom([]Confirmed{ConfirmedYes, ConfirmedUnknown}).Draw(t, "confirmed"))
		w.start()
		w.run()
		w.check()
	})
}

// The same with stalls longer than every deadline, wires that break and RSTs that get lost.
func TestHandshakeModelFaulty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, true, rapid.SampledFrom([]Confirmed{ConfirmedYes, ConfirmedUnknown}).Draw(t, "confirmed"))
		w.start()
		w.run()
		w.check()
	})
}

// A box removes the confirm option: the server takes a gateway for a native client. Its PROPOSAL must never reach the
// application.
func TestHandshakeModelStripped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Bool().Draw(t, "faulty"), ConfirmedNo)
		w.start()
		w.run()
		w.check()
		require.False(t, w.rawDial, "the program has a connection of a gateway")
		if v, _ := w.s.Verdict(); w.started && !w.died {
			require.Equal(t, OutcomeAborted, v.Outcome)
		}
	})
}

// A native client on a connection the server accepted: every byte reaches the application unless it is the PROPOSAL.
func TestRawModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewServer(ServerConfig{}, testNonce)
		confirmed := rapid.SampledFrom([]Confirmed{ConfirmedNo, ConfirmedUnknown}).Draw(t, "confirmed")
		r := &rawRun{t: t, now: t0}
		r.do(s.Start(t0, testRTT, confirmed))
		r.play(s)
		v, ok := s.Verdict()
		require.True(t, ok)
		require.Equal(t, Verdict{Outcome: OutcomeRaw, Reason: ReasonAcceptLost}, v)
		require.Equal(t, string(r.sent), string(r.forwarded))
	})
}

// rawRun plays the owner of a raw relay.
type rawRun struct {
	t               *rapid.T
	now             time.Time
	sent, forwarded []byte
	dial            bool
	last            bool
}

func (r *rawRun) do(todo []Action) {
	for _, a := range todo {
		switch a := a.(type) {
		case DialRaw:
			r.dial = true
		case RelayRaw:
		case Forward:
			require.False(r.t, r.last)
			r.forwarded, r.last = append(r.forwarded, a.Bytes...), a.Last
		default:
			r.t.Fatalf("raw server was told %#v", a)
		}
	}
}

// play sends a stream that begins like a PROPOSAL for a while, with dial, silence and end of stream at any point.
func (r *rawRun) play(s *Server) {
	pattern := guardPattern(testNonce)
	same := rapid.IntRange(0, guardLen-1).Draw(r.t, "same")
	stream := append(append([]byte{}, pattern[:same]...), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(r.t, "stream")...)
	if guard(stream, testNonce) == guardMatch {
		r.t.Skip("a PROPOSAL")
	}
	for dialled := false; len(stream) > 0 || !dialled; {
		switch {
		case r.dial && !dialled && rapid.Bool().Draw(r.t, "dialled"):
			dialled = true
			r.do(s.RawDialled(r.now, true, 0))
		case s.Reading() && len(stream) > 0 && rapid.Bool().Draw(r.t, "read"):
			n := rapid.IntRange(1, len(stream)).Draw(r.t, "piece")
			r.sent = append(r.sent, stream[:n]...)
			r.do(s.Receive(r.now, stream[:n]))
			stream = stream[n:]
		case r.last:
			r.sent, r.forwarded, stream = append(r.sent, stream...), append(r.forwarded, stream...), nil
		default:
			r.now = r.now.Add(50 * time.Millisecond)
			r.do(s.Tick(r.now))
		}
	}
	r.do(s.EOF(r.now))
}
