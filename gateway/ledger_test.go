package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/negotiate"
)

// ledgerSide is one gateway of the model: its books, what its application writes
// and has read, and what is on the way from it.
type ledgerSide struct {
	books ledger
	left  bool // its queue pair

	input  int    // bytes its application will still write
	sent   uint64 // by the queue pair, until it leaves it
	placed uint64 // of them, those that have arrived
	ended  bool   // END was sent
	done   bool   // DEMOTE-DONE was sent

	taken   uint64 // by its application, of the peer's bytes
	endSeen bool   // and the end of them
	haveEnd bool   // HAVE{final} was sent

	wire []negotiate.Record // under way to the peer
}

// ledgerModel is two of them. Bytes are their offsets: byte n of a direction must
// be taken as the n-th, once.
type ledgerModel struct {
	t     *rapid.T
	sides [2]*ledgerSide
	total [2]uint64
}

func (m *ledgerModel) send(s *ledgerSide, r negotiate.Record) { s.wire = append(s.wire, r) }

// leave is what a side does that begins, or has read DEMOTE.
func (m *ledgerModel) leave(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if s.left {
		return
	}
	endKnown, final, phase, taken := s.books.endKnown, s.books.final, s.books.peer, s.books.taken
	s.left = true
	freed := rapid.Uint64Range(0, min(s.sent, peer.taken)).Draw(m.t, "freed")
	s.books = ledger{
		peer: phase, demoted: true, read: s.sent, freed: freed, ended: s.ended, taken: taken,
		received: s.taken, consumed: s.taken, reported: s.taken, endKnown: endKnown, final: final,
	}
	m.send(s, negotiate.Record{Type: negotiate.RecordDemote})
	m.send(s, negotiate.Record{Type: negotiate.RecordHave, Offset: s.taken, Window: relayWindow})
	if s.ended {
		m.send(s, negotiate.Record{Type: negotiate.RecordEnd, Offset: s.sent})
	}
}

// write moves bytes of the application, by whatever carries them.
func (m *ledgerModel) write(i int) {
	s := m.sides[i]
	if !s.left {
		n := rapid.IntRange(0, s.input).Draw(m.t, "n")
		s.input -= n
		s.sent += uint64(n)
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
	n := rapid.Uint64Range(1, room).Draw(m.t, "n")
	if !s.books.tail() {
		s.input -= int(n)
	}
	offset := s.books.send(int(n))
	m.send(s, negotiate.Record{Type: negotiate.RecordData, Offset: offset, Payload: make([]byte, n)})
	s.sent = max(s.sent, s.books.sent)
}

// end is the end of what the application writes.
func (m *ledgerModel) end(i int) {
	s := m.sides[i]
	if s.ended || s.input > 0 || s.left && !s.books.left() {
		return
	}
	s.ended, s.books.ended = true, true
	m.send(s, negotiate.Record{Type: negotiate.RecordEnd, Offset: s.sent})
}

// arrive: the queue pair places bytes at the peer.
func (m *ledgerModel) arrive(i int) {
	s := m.sides[i]
	if !s.left && !m.sides[1-i].left {
		s.placed += rapid.Uint64Range(0, s.sent-s.placed).Draw(m.t, "n")
	}
}

// take: the application takes what is there.
func (m *ledgerModel) take(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	there := peer.placed
	if s.left {
		there = s.books.received
	}
	n := rapid.Uint64Range(0, there-s.taken).Draw(m.t, "n")
	s.taken += n
	if !s.left {
		if s.books.endKnown && s.taken == s.books.final && !s.haveEnd {
			s.haveEnd, s.endSeen = true, true
			m.send(s, negotiate.Record{Type: negotiate.RecordHave, Offset: s.taken})
		}
		return
	}
	s.books.consume(int(n))
	if s.books.due() {
		m.send(s, negotiate.Record{Type: negotiate.RecordHave, Offset: s.books.report(), Window: relayWindow})
	}
	require.Equal(m.t, s.taken, s.books.consumed)
	if s.books.delivered() && !s.haveEnd {
		s.haveEnd, s.endSeen = true, true
		m.send(s, negotiate.Record{Type: negotiate.RecordHave, Offset: s.books.final})
	}
}

// deliver gives a side the oldest record of the other.
func (m *ledgerModel) deliver(i int) {
	s, peer := m.sides[i], m.sides[1-i]
	if len(peer.wire) == 0 {
		return
	}
	rec := peer.wire[0]
	peer.wire = peer.wire[1:]
	if !s.left { // what wireControl does
		switch rec.Type {
		case negotiate.RecordEnd:
			s.books.endKnown, s.books.final = true, rec.Offset
		case negotiate.RecordHave:
			s.books.taken = s.books.taken || s.ended && rec.Offset == s.sent
		case negotiate.RecordDemote:
			s.books.peer = peerLeft
			m.leave(i)
		default:
			m.t.Fatalf("%v before DEMOTE", rec.Type)
		}
		return
	}
	require.Equal(m.t, negotiate.ReasonNone, s.books.record(rec), "%v at %d in phase %d", rec.Type, rec.Offset, s.books.peer)
	require.LessOrEqual(m.t, s.books.received, peer.sent)
}

// finish: the queue pair is not needed any more.
func (m *ledgerModel) finish(i int) {
	s := m.sides[i]
	if s.left && s.books.left() && !s.done {
		s.done = true
		m.send(s, negotiate.Record{Type: negotiate.RecordDemoteDone})
	}
}

// over: everything was taken, by both, and both know it.
func (m *ledgerModel) over() bool {
	for i, s := range m.sides {
		if !s.endSeen || s.taken != m.total[1-i] || !s.books.taken || len(s.wire) > 0 {
			return false
		}
	}
	return true
}

// TestLedgerModel: whoever leaves the queue pair when, with whatever under way,
// every byte is taken once and in order, both ends are told, and nothing an honest
// side says is a violation.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &ledgerModel{t: t}
		for i := range m.sides {
			n := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 3*relayWindow)).Draw(t, "bytes")
			m.sides[i] = &ledgerSide{input: n}
			m.sides[i].books.peer = peerCarried
			m.total[i] = uint64(n)
		}
		steps := []func(int){m.write, m.end, m.arrive, m.take, m.deliver, m.finish, m.leave}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")](rapid.IntRange(0, 1).Draw(t, "side"))
		}
		m.leave(rapid.IntRange(0, 1).Draw(t, "who"))
		for range 400 {
			if m.over() && m.sides[0].done && m.sides[1].done {
				break
			}
			for _, step := range []func(int){m.write, m.end, m.take, m.deliver, m.finish} {
				step(0)
				step(1)
			}
		}
		for i, s := range m.sides {
			require.Equal(t, m.total[1-i], s.taken)
			require.True(t, s.endSeen && s.books.taken && s.done && s.books.left(), "side %d: %+v", i, s)
		}
		for range m.sides[0].wire {
			m.deliver(1)
		}
		for range m.sides[1].wire {
			m.deliver(0)
		}
		require.True(t, m.sides[0].books.done && m.sides[1].books.done)
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
			l := ledger{peer: peerCarried, demoted: true, read: 30, freed: 10, ended: true, received: 5, consumed: 5, reported: 5}
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
