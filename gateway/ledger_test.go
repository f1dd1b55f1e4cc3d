package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/negotiate"
)

// modelSide is one gateway of the model: its books, what its application writes
// and has read, and what is on the way from it. What it does with the books is what
// carry, relay and wireControl do.
type modelSide struct {
	books  ledger
	client bool

	input  int    // bytes its application will still write
	placed uint64 // of those that the queue pair sent, those that have arrived
	sent   uint64 // by the queue pair, until it leaves it
	taken  uint64 // by its application, of the peer's bytes
	done   bool   // DEMOTE-DONE was sent

	wire  []negotiate.Record // under way to the peer
	reset bool               // behind them: the wire leg was reset
	gone  bool               // the peer's reset was read
	state modelState
	at    int     // when its timer expires, 0: it is not set
	what  outcome // what for
}

type modelState uint8

const (
	modelRuns modelState = iota
	modelCompleted
	modelAborted
)

// ledgerModel is two of them on virtual time. Bytes are their offsets: byte n of a
// direction must be taken as the n-th, once.
type ledgerModel struct {
	t     *rapid.T
	sides [2]*modelSide
	total [2]uint64
	now   int  // seconds
	torn  bool // an application has reset its connection
	eager bool // as much as can be moved is moved
}

// some draws how many bytes are moved.
func (m *ledgerModel) some(least, most uint64) uint64 {
	if m.eager {
		return most
	}
	return rapid.Uint64Range(least, most).Draw(m.t, "n")
}

func (s *modelSide) runs() bool { return s.state == modelRuns }

func (m *ledgerModel) send(i int, r negotiate.Record) {
	s, peer := m.sides[i], m.sides[1-i]
	s.wire = append(s.wire, r)
	if !peer.runs() { // its kernel or what remembers the tuple answers by a reset
		peer.reset = true
	}
}

// leave is what a side does that begins, or has read DEMOTE.
func (m *ledgerModel) leave(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if !s.runs() || !s.books.carried() {
		return
	}
	s.books.leave(s.sent, rapid.Uint64Range(0, min(s.sent, peer.taken)).Draw(m.t, "freed"), s.taken)
	m.send(i, negotiate.Record{Type: negotiate.RecordDemote})
	m.send(i, negotiate.Record{Type: negotiate.RecordHave, Offset: s.taken, Window: relayWindow})
	if s.books.tx != txOpen {
		m.send(i, negotiate.Record{Type: negotiate.RecordEnd, Offset: s.sent})
	}
}

// write moves bytes of the application, by whatever carries them.
func (m *ledgerModel) write(i int) {
	s := m.sides[i]
	if !s.runs() {
		return
	}
	if s.books.carried() {
		n := m.some(0, uint64(s.input))
		s.input -= int(n)
		s.sent += n
		return
	}
	room := s.books.room()
	if s.books.tail() {
		room = min(room, s.books.read-s.books.sent)
	} else {
		room = min(room, uint64(s.input))
	}
	if room == 0 {
		return
	}
	n := m.some(1, room)
	if !s.books.tail() {
		s.input -= int(n)
	}
	offset := s.books.send(int(n))
	m.send(i, negotiate.Record{Type: negotiate.RecordData, Offset: offset, Payload: make([]byte, n)})
	s.sent = max(s.sent, s.books.sent)
}

// end is the end of what the application writes.
func (m *ledgerModel) end(i int) {
	s := m.sides[i]
	if !s.runs() || s.books.tx != txOpen || s.input > 0 || !s.books.carried() && !s.books.left() {
		return
	}
	s.books.end(s.sent)
	m.send(i, negotiate.Record{Type: negotiate.RecordEnd, Offset: s.sent})
}

// arrive: the queue pair places bytes at the peer.
func (m *ledgerModel) arrive(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if s.runs() && peer.runs() && s.books.carried() && peer.books.carried() {
		s.placed += m.some(0, s.sent-s.placed)
	}
}

// received is how many of the peer's bytes are here.
func (m *ledgerModel) received(i int) uint64 {
	if s := m.sides[i]; !s.books.carried() {
		return s.books.received
	}
	return m.sides[1-i].placed
}

// take: the application takes what is there, and the end.
func (m *ledgerModel) take(i int) {
	s := m.sides[i]
	if !s.runs() {
		return
	}
	n := m.some(0, m.received(i)-s.taken)
	s.taken += n
	if !s.books.carried() {
		s.books.consume(int(n))
		require.Equal(m.t, s.taken, s.books.consumed)
		if s.books.due() {
			m.send(i, negotiate.Record{Type: negotiate.RecordHave, Offset: s.books.report(), Window: relayWindow})
		}
	}
	if s.books.rx == rxKnown && s.taken == s.books.final {
		s.books.shut()
	}
}

// closes: the application closes what has ended both ways, and its kernel has all.
func (m *ledgerModel) closes(i int) {
	s := m.sides[i]
	s.books.legDone = s.books.legDone || s.runs() && s.books.tx != txOpen && s.books.rx >= rxShut
}

// resets: the application resets its connection.
func (m *ledgerModel) resets(i int) {
	if s := m.sides[i]; s.runs() && !s.books.legDone {
		m.torn = true
		m.over(i, modelAborted)
	}
}

// over ends a side: it resets the wire leg, and what is under way may be lost.
func (m *ledgerModel) over(i int, how modelState) {
	s := m.sides[i]
	s.state, s.reset = how, true
	s.wire = s.wire[:rapid.IntRange(0, len(s.wire)).Draw(m.t, "of the last words arrive")]
	if rapid.IntRange(0, 3).Draw(m.t, "reset is lost") == 0 && how == modelCompleted {
		s.reset = false // what the peer sends is answered by another one
	}
}

// deliver gives a side the oldest record of the other, or the reset behind all.
func (m *ledgerModel) deliver(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if !s.runs() || s.gone {
		return
	}
	if s.books.carried() {
		s.books.received = m.received(i)
	}
	if len(peer.wire) == 0 {
		if peer.reset {
			s.gone = true
			if s.books.rx >= rxShut {
				s.books.received = s.books.final
			}
			if !s.books.lost() {
				m.over(i, modelAborted)
			}
		}
		return
	}
	rec := peer.wire[0]
	peer.wire = peer.wire[1:]
	require.Equal(m.t, negotiate.ReasonNone, s.books.record(rec), "%v at %d in phase %d", rec.Type, rec.Offset, s.books.peer)
	if rec.Type == negotiate.RecordDemote {
		m.leave(i)
	}
	require.LessOrEqual(m.t, s.books.received, peer.sent)
}

// settle is what follows everything that happens.
func (m *ledgerModel) settle(i int) {
	s := m.sides[i]
	if !s.runs() {
		return
	}
	if s.books.demoted && s.books.left() && !s.done {
		s.done = true
		m.send(i, negotiate.Record{Type: negotiate.RecordDemoteDone})
	}
	if s.books.tell(s.client) {
		m.send(i, negotiate.Record{Type: negotiate.RecordHave, Offset: s.books.final})
	}
	switch next := s.books.outcome(s.client, s.gone); next {
	case isOver:
		m.over(i, modelCompleted)
	case lingers, asks:
		if s.at == 0 || s.what != next {
			s.at, s.what = m.now+5, next
		}
	case goesOn:
	}
}

// tick lets the time pass until the next timer expires. The wire leg of a relay is
// kept alive by TCP meanwhile.
func (m *ledgerModel) tick(int) {
	at := 0
	for i, s := range m.sides {
		if peer := m.sides[1-i]; s.runs() && !s.books.carried() && !peer.runs() {
			peer.reset = true
		}
		if s.runs() && s.at > 0 && (at == 0 || s.at < at) {
			at = s.at
		}
	}
	if at == 0 {
		return
	}
	m.now = at
	for i, s := range m.sides {
		switch {
		case !s.runs() || s.at != at:
			continue
		case s.what == lingers:
			s.at = 0
			m.over(i, modelCompleted)
		default:
			s.at = 0
			m.send(i, negotiate.Record{Type: negotiate.RecordKeepalive})
		}
	}
}

// step does one thing on one side, and what follows from it.
func (m *ledgerModel) step(do func(int), i int) {
	do(i)
	m.settle(0)
	m.settle(1)
}

func (m *ledgerModel) ended() bool { return !m.sides[0].runs() && !m.sides[1].runs() }

func newLedgerModel(t *rapid.T) *ledgerModel {
	m := &ledgerModel{t: t}
	relays := rapid.Bool().Draw(t, "begins on the relay")
	for i := range m.sides {
		n := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 3*relayWindow)).Draw(t, "bytes")
		m.sides[i] = &modelSide{input: n, client: i == 0, books: newCarriedLedger()}
		if relays { // it has no queue pair to leave
			m.sides[i].books, m.sides[i].done = newLedger(), true
		}
		m.total[i] = uint64(n)
	}
	return m
}

// TestLedgerModel: whoever ends, leaves the queue pair or resets when, with whatever
// under way, both sides come to an end. Without a reset of an application every byte
// is taken once and in order, both ends are told, both sides see the end as an orderly
// one, and nothing an honest side says is a violation.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newLedgerModel(t)
		steps := []func(int){m.write, m.end, m.arrive, m.take, m.closes, m.deliver, m.leave, m.tick}
		if rapid.IntRange(0, 3).Draw(t, "may be torn") == 0 {
			steps = append(steps, m.resets)
		}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			m.step(rapid.SampledFrom(steps).Draw(t, "step"), rapid.IntRange(0, 1).Draw(t, "side"))
		}
		if rapid.Bool().Draw(t, "leave at last") {
			m.step(m.leave, rapid.IntRange(0, 1).Draw(t, "who"))
		}
		m.eager = true
		for range 100 {
			if m.ended() {
				break
			}
			for _, do := range []func(int){m.write, m.end, m.arrive, m.take, m.closes, m.deliver} {
				m.step(do, 0)
				m.step(do, 1)
			}
			m.step(m.tick, 0)
		}
		for i, s := range m.sides {
			require.False(t, s.runs(), "side %d hangs: %+v", i, s)
			if m.torn {
				continue
			}
			require.Equal(t, modelCompleted, s.state, "side %d: %+v", i, s)
			require.Equal(t, m.total[1-i], s.taken)
			require.True(t, s.books.tx == txTaken && s.books.rx >= rxShut, "side %d: %+v", i, s)
		}
	})
}

// TestLedgerRefuses: what no honest peer says.
func TestLedgerRefuses(t *testing.T) {
	record := func(k negotiate.RecordType, offset uint64) negotiate.Record {
		r := negotiate.Record{Type: k, Offset: offset}
		if k == negotiate.RecordData {
			r.Payload = []byte{1}
		}
		return r
	}
	demote, done := record(negotiate.RecordDemote, 0), record(negotiate.RecordDemoteDone, 0)
	have := func(n uint64) negotiate.Record { return record(negotiate.RecordHave, n) }
	data := func(n uint64) negotiate.Record { return record(negotiate.RecordData, n) }
	end := func(n uint64) negotiate.Record { return record(negotiate.RecordEnd, n) }
	lost, violation := negotiate.ReasonLostBytes, negotiate.ReasonProtocolError
	for name, c := range map[string]struct {
		says []negotiate.Record
		want negotiate.Reason
	}{
		"have below what was freed":     {[]negotiate.Record{demote, have(9)}, lost},
		"have beyond what was sent":     {[]negotiate.Record{demote, have(31)}, violation},
		"have beyond, still carried":    {[]negotiate.Record{have(31)}, violation},
		"data, still carried":           {[]negotiate.Record{data(5)}, violation},
		"data before have":              {[]negotiate.Record{demote, data(5)}, violation},
		"demote twice":                  {[]negotiate.Record{demote, demote}, violation},
		"demote again, later":           {[]negotiate.Record{demote, have(20), demote}, violation},
		"done, still carried":           {[]negotiate.Record{done}, violation},
		"done before have":              {[]negotiate.Record{demote, done}, violation},
		"done twice":                    {[]negotiate.Record{demote, have(20), done, done}, violation},
		"data that was had":             {[]negotiate.Record{demote, have(20), data(4)}, violation},
		"data behind a gap":             {[]negotiate.Record{demote, have(20), data(6)}, violation},
		"end before what was had":       {[]negotiate.Record{end(4)}, violation},
		"another end":                   {[]negotiate.Record{end(7), demote, have(20), end(8)}, violation},
		"data behind the end":           {[]negotiate.Record{demote, have(20), end(5), data(5)}, violation},
		"have of what was not sent yet": {[]negotiate.Record{demote, have(20), have(21)}, violation},
		"less than all, afterwards":     {[]negotiate.Record{have(30), demote, have(29)}, violation},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger{peer: peerCarried, demoted: true, read: 30, freed: 10, tx: txEnded, received: 5, consumed: 5, reported: 5}
			for _, rec := range c.says[:len(c.says)-1] {
				require.Equal(t, negotiate.ReasonNone, l.record(rec))
			}
			require.Equal(t, c.want, l.record(c.says[len(c.says)-1]))
		})
	}
	l := newLedger()
	require.Equal(t, violation, l.record(demote), "a flow that began on the relay")
	l = newLedger()
	require.Equal(t, violation, l.record(done))
}

// TestHaveAnswersTheEnd: a HAVE with a window is of bytes, even at the offset of the end:
// it may have been sent before END came, and END may still be lost.
func TestHaveAnswersTheEnd(t *testing.T) {
	for _, l := range []ledger{newLedger(), newCarriedLedger()} {
		l.send(9)
		l.end(9)
		for _, c := range []struct {
			window uint64
			want   txPhase
		}{{relayWindow, txEnded}, {0, txTaken}} {
			require.Equal(t, negotiate.ReasonNone, l.record(negotiate.Record{Type: negotiate.RecordHave, Offset: 9, Window: c.window}))
			require.Equal(t, c.want, l.tx)
		}
	}
}
