package flow

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// modelSide is the shell of one core: its application, its link and its end of the wire
// leg. Bytes are their offsets: byte n of a direction must be taken as the n-th, once.
type modelSide struct {
	core Core

	input  int    // bytes its application will still write
	placed uint64 // of the bytes that the link sent, those that have arrived
	sent   uint64 // by the link, until it is left, and by the relay
	taken  uint64 // by its application, of the peer's bytes

	begun   bool // records are exchanged, or were
	out     []negotiate.Record
	wire    []negotiate.Record // under way to the peer
	reset   bool               // after them: the wire leg was reset
	syn     bool               // after all: a SYN of the next connection
	forgot  bool               // nothing leaves any more
	gone    bool               // the peer's reset was read
	owed    bool               // after that everything of the peer is here: its application gets it
	look    bool               // a look at the wire leg is due
	done    bool               // DEMOTE-DONE was sent
	unused  bool               // the peer has left its link
	asked   bool               // an operator has asked for the link to be left
	left    int                // how often the link was left
	linger  time.Duration      // when it is due; 0: not set
	patient time.Duration      // the same
	ends    []Action           // the action that ended it
	counts  int                // as a fallback
}

// model is two cores back to back on virtual time: the client's is the first.
type model struct {
	t     *rapid.T
	by    By
	sides [2]*modelSide
	total [2]uint64
	now   time.Duration
	cut   bool // the link has failed: nothing arrives by it any more
	torn  bool // something else than the end of both directions has ended it
	eager bool // as much as can be moved is moved
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, by: rapid.SampledFrom([]By{ByLink, ByRelay}).Draw(t, "by")}
	for i, side := range []report.Side{report.SideClient, report.SideServer} {
		n := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 3*Window)).Draw(t, "bytes")
		m.sides[i] = &modelSide{core: New(side), input: n, done: m.by == ByRelay}
		m.total[i] = uint64(n)
	}
	return m
}

// some draws how many bytes are moved.
func (m *model) some(least, most uint64) uint64 {
	if m.eager {
		return most
	}
	return rapid.Uint64Range(least, most).Draw(m.t, "n")
}

func (m *model) chance(n int, what string) bool { return rapid.IntRange(0, n).Draw(m.t, what) == 0 }

func (s *modelSide) runs() bool  { return !s.core.Ended() }
func (s *modelSide) moves() bool { return s.runs() && s.begun }

// do executes actions, as a shell does.
func (m *model) do(i int, todo []Action) {
	s := m.sides[i]
	for _, a := range todo {
		require.True(m.t, s.runs() || a.Do == End || a.Do == CountFallback, "%d after the end", a.Do)
		switch a.Do {
		case Queue:
			s.out = append(s.out, a.Record)
		case Flush:
			m.flush(i)
		case Look:
			s.look = true
		case Pump:
		case DrainLink:
			m.drain(i, a.Cause)
		case Relay:
			s.left++
			s.patient = 0
			require.Equal(m.t, ByRelay, s.core.By())
		case LinkUnused:
			require.False(m.t, s.unused)
			s.unused = true
		case SetLinger:
			s.linger = m.now + a.After
		case SetPatience:
			s.patient = m.now + a.After
		case ProbeWire:
			if !m.chance(2, "probe is lost") {
				m.answer(1 - i)
			}
		case CancelHandshake:
			m.torn = true
			m.do(i, m.giveUp(i, a.Verdict))
		case CountFallback:
			s.counts++
		case End:
			m.end(i, a)
		}
	}
}

// giveUp is what a handshake orders that cannot go on.
func (m *model) giveUp(i int, v negotiate.Verdict) []Action {
	if i == 0 && rapid.Bool().Draw(m.t, "goes native") {
		return m.sides[i].core.Releases(v)
	}
	return m.sides[i].core.HandshakeAborts(v, rapid.Bool().Draw(m.t, "mute"))
}

// answer: the kernel of an ended side, or what remembers the tuple, answers by a reset.
func (m *model) answer(i int) {
	if s := m.sides[i]; !s.runs() {
		s.reset = true
	}
}

func (m *model) flush(i int) {
	s := m.sides[i]
	if s.gone || len(s.out) == 0 {
		s.out = nil
		return
	}
	s.wire, s.out = append(s.wire, s.out...), nil
	m.answer(1 - i)
}

// end: the side resets the wire leg, and what is under way may be lost; or not a packet
// leaves.
func (m *model) end(i int, a Action) {
	s := m.sides[i]
	s.ends = append(s.ends, a)
	require.Len(m.t, s.ends, 1)
	if a.Word != negotiate.ReasonNone && len(s.out) == 0 && s.begun {
		s.wire = append(s.wire, negotiate.Record{Type: negotiate.RecordAbort, Reason: a.Word})
	}
	s.out = nil
	s.wire = s.wire[:rapid.IntRange(0, len(s.wire)).Draw(m.t, "of the last words arrive")]
	switch {
	case a.Ending.Wire == WireForget:
		s.forgot, s.wire = true, nil
	case s.core.Phase() == Closed && m.chance(3, "reset is lost"): // what the peer sends is answered by another one
	default:
		s.reset = true
	}
}

// advance takes the next step of a handshake.
func (m *model) advance(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if !s.runs() {
		return
	}
	switch s.core.Phase() {
	case Accepted:
		s.core.HandshakeBegins()
		s.core.Negotiates()
	case Negotiating:
		if i == 0 {
			s.core.Completes()
		} else if peer.core.Phase() >= Carrying { // CONFIRM has come
			m.carry(i)
		}
	case Completing:
		if peer.core.Phase() == Negotiating || !peer.runs() {
			m.carry(i)
		}
	default:
		if !s.begun {
			s.begun = s.core.Talk()
			require.True(m.t, s.begun)
			m.do(i, s.core.Talked())
			require.False(m.t, s.asked && s.runs() && s.left == 0, "it stays on its link")
		}
	}
}

func (m *model) carry(i int) {
	require.True(m.t, m.sides[i].core.CarriedBy(m.by))
	require.Equal(m.t, Carrying, m.sides[i].core.Phase())
	m.noticed(i)
}

// drain takes in what the link has, and says where it stands.
func (m *model) drain(i int, cause string) {
	s, peer := m.sides[i], m.sides[1-i]
	m.take(i)
	m.do(i, s.core.LinkDrained(Drained{
		Cause: cause, Sent: s.sent, Consumed: s.taken,
		Freed: rapid.Uint64Range(0, min(s.sent, peer.taken)).Draw(m.t, "freed"),
	}))
}

// leave: an operator has the link left.
func (m *model) leave(i int) {
	s := m.sides[i]
	asked := s.core.By() == ByLink && s.runs()
	m.do(i, s.core.Leave("operator"))
	s.asked = s.asked || asked
	require.False(m.t, asked && s.begun && s.runs() && s.left == 0 && !s.gone, "it stays on its link")
}

// breaks: the link fails, which both sides notice, one after the other.
func (m *model) breaks(i int) {
	m.cut = true
	m.noticed(i)
	m.noticed(1 - i)
}

// noticed: a side notices that the link has failed.
func (m *model) noticed(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if m.cut && s.core.By() == ByLink && s.core.MindsLink(peer.placed) {
		m.do(i, s.core.LinkFails(negotiate.ReasonDeviceFailed, true))
		require.False(m.t, s.core.MindsLink(peer.placed), "known")
	}
}

// endsUnsaid: a side notices that the link has failed when the application has ended.
func (m *model) endsUnsaid(i int) {
	s := m.sides[i]
	if s.moves() && s.core.By() == ByLink && s.core.Tx == TxOpen && s.input == 0 {
		m.cut = true
		s.core.LegEndsUnsaid(s.sent)
		m.breaks(i)
	}
}

// write moves bytes of the application, by whatever carries them.
func (m *model) write(i int) {
	s := m.sides[i]
	if !s.moves() || s.core.Tx != TxOpen && !s.core.Tail() {
		return
	}
	if s.core.By() == ByLink {
		n := m.some(0, uint64(s.input))
		s.input -= int(n)
		s.sent += n
		return
	}
	room := s.core.Room()
	if s.core.Tail() {
		room = min(room, s.core.Read-s.core.Sent)
	} else {
		room = min(room, uint64(s.input))
	}
	if room == 0 || s.gone {
		return
	}
	n := m.some(1, room)
	if !s.core.Tail() {
		s.input -= int(n)
	}
	offset := s.core.Send(int(n))
	m.do(i, []Action{{Do: Queue, Record: negotiate.Record{Type: negotiate.RecordData, Offset: offset, Payload: make([]byte, n)}}, {Do: Flush}})
	s.sent = max(s.sent, s.core.Sent)
}

// ends: the end of what the application writes is read.
func (m *model) ends(i int) {
	s := m.sides[i]
	if !s.moves() || s.core.Tx != TxOpen || s.input > 0 || s.core.By() == ByRelay && !s.core.Left() {
		return
	}
	m.do(i, s.core.LegEnds(s.sent))
	require.Equal(m.t, Closing, s.core.Phase())
}

// arrive: the link places bytes at the peer.
func (m *model) arrive(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if !m.cut && s.runs() && peer.runs() && s.core.By() == ByLink && peer.core.By() == ByLink {
		s.placed += m.some(0, s.sent-s.placed)
	}
}

// received is how many of the peer's bytes are here.
func (m *model) received(i int) uint64 {
	if s := m.sides[i]; s.core.By() != ByLink {
		return s.core.Received
	}
	return m.sides[1-i].placed
}

// take: the application takes what is there, and the end.
func (m *model) take(i int) {
	s := m.sides[i]
	if !s.moves() || s.core.Rx >= RxShut {
		return
	}
	n := m.some(0, m.received(i)-s.taken)
	s.taken += n
	if s.core.By() == ByRelay {
		s.core.Consume(int(n))
		require.Equal(m.t, s.taken, s.core.Consumed)
		if s.core.Due() {
			m.do(i, []Action{record(negotiate.RecordHave, s.core.Report(), Window), {Do: Flush}})
		}
	}
	if s.core.Rx == RxKnown && s.taken == s.core.Final {
		m.do(i, s.core.LegShut())
	}
}

// closes: the application closes what has ended both ways, and its kernel has all.
func (m *model) closes(i int) {
	if s := m.sides[i]; s.moves() && !s.core.LegDone && s.core.Tx != TxOpen && s.core.Rx >= RxShut {
		m.do(i, s.core.LegDelivered())
	}
}

// What tears a connection.

// tear: an end other than that of both directions begins at a side.
func (m *model) tear(i int) { m.torn, m.sides[i].owed = true, false }

// loses: something on the way, or the kernel of a gateway that died, resets the wire leg.
func (m *model) loses(i int) {
	if s, peer := m.sides[i], m.sides[1-i]; s.moves() && !s.gone {
		m.torn = true
		peer.wire, s.reset = nil, true
		m.wireEnds(i)
		s.owed = s.runs()
	}
}

// resets: the application resets its connection.
func (m *model) resets(i int) {
	if s := m.sides[i]; s.moves() && !s.core.LegDone {
		m.tear(i)
		m.do(i, s.core.Aborts(negotiate.ReasonAppReset, false))
	}
}

// anew: the application of the client begins another connection on the tuple.
func (m *model) anew(int) {
	if s := m.sides[0]; s.runs() {
		m.tear(0)
		m.do(0, s.core.Replaced())
		s.syn = true
	}
}

// arriveSYN: the server learns of that by a SYN.
func (m *model) arriveSYN(int) {
	if client, server := m.sides[0], m.sides[1]; client.syn && server.runs() {
		client.syn = false
		m.tear(1)
		m.do(1, server.core.Replaced())
	}
}

// givenBack: the programs leave the connection to the kernel.
func (m *model) givenBack(i int) {
	if s := m.sides[i]; s.runs() {
		m.tear(i)
		m.do(i, s.core.GivenBack(rapid.Bool().Draw(m.t, "late")))
	}
}

// cancel: the gateway ends.
func (m *model) cancel(i int) {
	s := m.sides[i]
	if !s.runs() {
		return
	}
	m.do(i, s.core.Cancel(negotiate.ReasonDrained))
	if !s.runs() {
		m.tear(i)
	}
}

// panics: the code of one side cannot be trusted.
func (m *model) panics(i int) {
	if s := m.sides[i]; s.runs() {
		m.tear(i)
		m.do(i, s.core.Panicked(rapid.Bool().Draw(m.t, "untouched"), rapid.Bool().Draw(m.t, "mute")))
		require.False(m.t, s.runs())
	}
}

// deliver gives a side the oldest record of the other, or the reset after all.
func (m *model) deliver(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	switch {
	case !s.runs() || s.gone:
	case !s.begun:
		if len(peer.wire) == 0 && peer.reset && handshakes.has(s.core.Phase()) {
			s.gone = true
			m.do(i, m.giveUp(i, negotiate.Verdict{Reason: negotiate.ReasonWireReset, Remote: true}))
		}
	case len(peer.wire) > 0:
		rec := peer.wire[0]
		peer.wire = peer.wire[1:]
		before := s.core
		m.do(i, s.core.Record(rec, m.received(i)))
		if rec.Type == negotiate.RecordAbort {
			require.False(m.t, s.runs())
		} else if !s.runs() { // an honest peer says nothing that ends it
			require.Fail(m.t, "violation", "%v at %d: %+v", rec.Type, rec.Offset, before)
		}
		require.LessOrEqual(m.t, s.core.Received, peer.sent)
	case peer.reset:
		m.wireEnds(i)
	}
}

// wireEnds: a side reads the reset of the wire leg.
func (m *model) wireEnds(i int) {
	s := m.sides[i]
	s.gone, s.out = true, nil
	m.do(i, s.core.WireEnded(m.received(i)))
}

// settle is what follows everything that happens.
func (m *model) settle(i int) {
	s := m.sides[i]
	if !s.moves() {
		return
	}
	if s.left > 0 && s.core.Left() && !s.done {
		s.done = true
		m.do(i, []Action{record(negotiate.RecordDemoteDone, 0, 0), {Do: Flush}})
	}
	if s.look || s.core.By() == ByRelay {
		s.look = false
		m.do(i, s.core.Pay())
		m.flush(i)
	}
	m.do(i, s.core.Settle(false))
	require.Equal(m.t, !s.runs() || s.linger > 0 && s.core.waits == lingers, s.core.Settled())
}

// tick lets the time pass until the next timer is due. The wire leg of a relay is kept
// alive by TCP meanwhile.
func (m *model) tick(int) {
	next := time.Duration(0)
	for i, s := range m.sides {
		if s.runs() && s.core.By() != ByLink {
			m.answer(1 - i)
		}
		for _, at := range []time.Duration{s.linger, s.patient} {
			if s.runs() && at > 0 && (next == 0 || at < next) {
				next = at
			}
		}
	}
	if next == 0 {
		return
	}
	m.now = next
	for i, s := range m.sides {
		if s.runs() && s.patient == next {
			s.patient = 0
			m.do(i, s.core.Patience())
		}
		if s.runs() && s.linger == next {
			s.linger = 0
			m.do(i, s.core.Linger(false))
		}
	}
}

// step does one thing on one side, and what follows from it.
func (m *model) step(do func(int), i int) {
	do(i)
	m.settle(0)
	m.settle(1)
}

// finish has everything move that can, until both sides have ended.
func (m *model) finish() {
	m.eager = true
	for range 200 {
		if !m.sides[0].runs() && !m.sides[1].runs() {
			return
		}
		for _, do := range []func(int){m.advance, m.write, m.ends, m.arrive, m.take, m.closes, m.deliver, m.arriveSYN} {
			m.step(do, 0)
			m.step(do, 1)
		}
		m.step(m.tick, 0)
		if m.torn { // what keeps a peer alive finds that it is not
			m.answer(0)
			m.answer(1)
		}
	}
}

// check: both sides have ended, once. Where nothing has torn the connection every byte
// was taken once and in order, both ends were told, and the end is an orderly one. A
// client that has ended in order by itself knows that of both sides, whatever came later. A
// side that lost the wire leg after everything still ends in order.
func (m *model) check() {
	for i, s := range m.sides {
		peer := m.sides[1-i]
		require.False(m.t, s.runs(), "side %d hangs: %+v", i, s)
		require.Len(m.t, s.ends, 1)
		require.LessOrEqual(m.t, s.counts, 1)
		require.LessOrEqual(m.t, s.left, 1)
		require.LessOrEqual(m.t, s.taken, peer.sent)
		v := s.ends[0].Verdict
		require.Equal(m.t, s.core.Phase(), phaseOf(s.ends[0].Ending, s.core.Phase()))
		if s.owed {
			require.Equal(m.t, Closed, s.core.Phase(), "side %d, %v: %+v", i, v, s)
			require.Equal(m.t, m.total[1-i], s.taken)
		}
		if m.torn && (i == 1 || s.core.Phase() != Closed || s.gone) {
			continue
		}
		require.Equal(m.t, Closed, s.core.Phase(), "side %d, %v: %+v", i, v, s)
		require.Zero(m.t, s.counts)
		require.Equal(m.t, m.total[1-i], s.taken)
		require.Equal(m.t, m.total[i], peer.taken)
		require.True(m.t, s.core.Tx == TxTaken && s.core.Rx >= RxShut, "side %d: %+v", i, s)
	}
}

// phaseOf is the phase that an ending belongs to.
func phaseOf(e *Ending, p Phase) Phase {
	for i := range transitions {
		if transitions[i].Ending == e {
			return transitions[i].To
		}
	}
	return p + 1
}

// TestModel: whichever side ends, leaves the link or begins again, with whatever under
// way, both sides come to an end, and to the same one where nothing tears the
// connection.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		steps := []func(int){m.advance, m.write, m.ends, m.arrive, m.take, m.closes, m.deliver, m.leave, m.breaks, m.endsUnsaid, m.tick}
		if m.chance(1, "carried from the beginning") {
			for range 4 {
				m.advance(0)
				m.advance(1)
			}
		}
		if m.chance(2, "may be torn") {
			steps = append(steps, m.loses, m.resets, m.anew, m.arriveSYN, m.givenBack, m.cancel, m.panics)
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			m.step(rapid.SampledFrom(steps).Draw(t, "step"), rapid.IntRange(0, 1).Draw(t, "side"))
		}
		if rapid.Bool().Draw(t, "leave at last") {
			m.step(m.leave, rapid.IntRange(0, 1).Draw(t, "who"))
		}
		m.finish()
		m.check()
	})
}

// TestLostBehindTheEnds: the wire leg is lost after both ENDs with every byte of the peer in
// the link's ring. Whatever would have the link left then, or has failed before, the
// application gets all of it.
func TestLostBehindTheEnds(t *testing.T) {
	type event = func(*model, int)
	for name, events := range map[string][]event{
		"operator":                     {(*model).loses, (*model).leave},
		"failure":                      {(*model).loses, (*model).breaks},
		"patience":                     {(*model).breaks, (*model).loses},
		"patience of an early failure": {(*model).breaks, (*model).loses, (*model).leave},
		"patience after a part of all": {(*model).breaks, (*model).loses, (*model).take, (*model).tick},
	} {
		for side := range 2 {
			t.Run(fmt.Sprint(name, "/", side), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					m := newModel(t)
					m.by = ByLink
					for range 4 {
						m.advance(0)
						m.advance(1)
					}
					m.eager = true
					for _, do := range []func(int){m.write, m.arrive, m.ends, m.deliver} {
						m.step(do, 0)
						m.step(do, 1)
					}
					m.eager = false
					s := m.sides[side]
					require.True(t, s.core.BothEnd() && m.received(side) == s.core.Final)
					for _, do := range events {
						m.step(func(i int) { do(m, i) }, side)
					}
					m.finish()
					m.check()
					require.Zero(t, s.left)
				})
			})
		}
	}
}

// TestCrossings: each pair of END, RST, DEMOTE and SYN that cross each other on the wire,
// in each phase of the bytes.
func TestCrossings(t *testing.T) {
	type event struct {
		name string
		do   func(*model, int)
	}
	events := []event{
		{"END", (*model).ends},
		{"RST", (*model).resets},
		{"DEMOTE", (*model).leave},
		{"failure", (*model).breaks},
		{"END and failure", (*model).endsUnsaid},
		{"SYN", func(m *model, i int) {
			if m.anew(0); i == 1 {
				m.arriveSYN(1)
			}
		}},
	}
	before := map[string]func(*model){
		"idle":            func(*model) {},
		"bytes under way": func(m *model) { m.write(0); m.write(1) },
		"bytes placed":    func(m *model) { m.write(0); m.write(1); m.arrive(0); m.arrive(1) },
		"bytes taken":     func(m *model) { m.write(0); m.arrive(0); m.deliver(1); m.take(1) },
		"one has ended":   func(m *model) { m.sides[1].input, m.total[1] = 0, 0; m.ends(1); m.deliver(0) },
		"one has left":    func(m *model) { m.write(0); m.leave(0); m.deliver(1); m.deliver(1) },
		"both have ended": func(m *model) {
			for i, s := range m.sides {
				s.input, m.total[i] = 0, 0
				m.ends(i)
			}
		},
	}
	for stand, prepare := range before {
		for _, a := range events {
			for _, b := range events {
				t.Run(stand+"/"+a.name+" and "+b.name, func(t *testing.T) {
					rapid.Check(t, func(t *rapid.T) {
						m := newModel(t)
						for range 4 {
							m.advance(0)
							m.advance(1)
						}
						require.True(t, m.sides[0].begun && m.sides[1].begun)
						m.step(func(int) { prepare(m) }, 0)
						m.step(func(i int) { a.do(m, i) }, 0)
						m.step(func(i int) { b.do(m, i) }, 1)
						m.finish()
						m.check()
					})
				})
			}
		}
	}
}
