package minisock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// end is a Sock with what its owner has written, and read of the other's.
type end struct {
	*Sock
	wrote, read []byte
	over        bool // it takes more than a Sock from here on
}

// model is two Socks on a network that loses, repeats and reorders.
type model struct {
	rt      *rapid.T
	now     time.Duration
	ends    [2]*end
	flights [2][]Segment // towards ends[i]
}

func (m *model) send(i int, seg Segment) {
	seg.Payload = append([]byte(nil), seg.Payload...)
	m.flights[1-i] = append(m.flights[1-i], seg)
}

// flush sends what end i may.
func (m *model) flush(i, size int) {
	for seg, ok := m.ends[i].Next(m.now, size); ok; seg, ok = m.ends[i].Next(m.now, size) {
		m.send(i, seg)
	}
}

func (m *model) write(rt *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(rt, "writer")
	e := m.ends[i]
	if e.over {
		return
	}
	p := make([]byte, rapid.IntRange(1, 3000).Draw(rt, "bytes"))
	for j := range p {
		p[j] = byte(len(e.wrote) + j + 101*i)
	}
	e.wrote = append(e.wrote, p[:e.Write(p)]...)
	m.flush(i, rapid.IntRange(1, 1400).Draw(rt, "segment"))
}

func (m *model) arrive(rt *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(rt, "receiver")
	if len(m.flights[i]) == 0 {
		return
	}
	at := 0
	if rapid.IntRange(0, 9).Draw(rt, "reorder") == 0 {
		at = rapid.IntRange(0, len(m.flights[i])-1).Draw(rt, "which")
	}
	seg := m.flights[i][at]
	switch rapid.IntRange(0, 19).Draw(rt, "fate") {
	case 0: // lost
		m.flights[i] = append(m.flights[i][:at:at], m.flights[i][at+1:]...)
		return
	case 1: // comes twice
	default:
		m.flights[i] = append(m.flights[i][:at:at], m.flights[i][at+1:]...)
	}
	m.take(i, seg)
}

func (m *model) take(i int, seg Segment) {
	e := m.ends[i]
	if e.over {
		return
	}
	before := e.Numbers(m.now)
	switch v := e.Receive(m.now, seg.header(), seg.Payload); v {
	case Taken:
		m.flush(i, 1400)
		if e.Owes() > Unacknowledged {
			m.send(i, e.Ack(m.now))
		}
	case Answer:
		m.send(i, e.Ack(m.now))
	case Beyond:
		e.over = true
		after := e.Numbers(m.now)
		require.Equal(m.rt, before, after, "nothing was taken")
	default:
		require.Fail(m.rt, "verdict", "%v", v)
	}
}

func (m *model) readSome(rt *rapid.T) {
	e := m.ends[rapid.IntRange(0, 1).Draw(rt, "reader")]
	p := make([]byte, rapid.IntRange(1, 5000).Draw(rt, "most"))
	e.read = append(e.read, p[:e.Read(p)]...)
}

func (m *model) acknowledge(rt *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(rt, "end")
	if !m.ends[i].over && m.ends[i].Owes() > 0 {
		m.send(i, m.ends[i].Ack(m.now))
	}
}

func (m *model) pass(rt *rapid.T) {
	m.elapse(time.Duration(rapid.IntRange(1, 30).Draw(rt, "ms")) * time.Millisecond)
}

func (m *model) elapse(d time.Duration) {
	m.now += d
	for i, e := range m.ends {
		if e.over {
			continue
		}
		switch e.Expire(m.now) {
		case Repeat:
			m.flush(i, 1400)
		case TooLate:
			e.over = true
		case Nothing:
		default:
			require.Fail(m.rt, "no keepalive is set")
		}
	}
}

// check: what was read is what was written, and an endpoint that went on with the
// numbers would lose and repeat nothing.
func (m *model) check(*rapid.T) {
	for i, e := range m.ends {
		peer := m.ends[1-i]
		got := append(append([]byte(nil), e.read...), e.in...)
		require.Equal(m.rt, string(peer.wrote[:len(got)]), string(got))
		n, p := e.Numbers(m.now), peer.Numbers(m.now)
		require.Zero(m.rt, len(peer.wrote)-len(p.Written)-len(got)+int(n.Ack-p.Seq), "what the peer still has begins with, or before, what we await")
		require.LessOrEqual(m.rt, len(e.in), Room)
		require.LessOrEqual(m.rt, len(n.Written), Flight)
		require.Equal(m.rt, string(e.wrote[len(e.wrote)-len(n.Written):]), string(n.Written))
	}
}

// TestModel: whatever the network does, no byte is lost, repeated or reordered; where
// nothing took more than a Sock, all arrives.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{rt: rt}
		iss, irs := rapid.Uint32().Draw(rt, "iss"), rapid.Uint32().Draw(rt, "irs")
		a, b := newPair(0, iss, irs, rapid.Uint8Range(0, 14).Draw(rt, "scale"))
		m.ends = [2]*end{{Sock: a}, {Sock: b}}
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "arrive": m.arrive, "arrive again": m.arrive, "read": m.readSome, "acknowledge": m.acknowledge, "pass": m.pass, "": m.check,
		})
		for range 3 { // all that is under way, and what it calls for
			for i := range m.ends {
				for _, e := range m.ends {
					p := make([]byte, Room)
					e.read = append(e.read, p[:e.Read(p)]...)
				}
				for len(m.flights[i]) > 0 {
					seg := m.flights[i][0]
					m.flights[i] = m.flights[i][1:]
					m.take(i, seg)
				}
			}
			m.elapse(4 * testTimeout)
		}
		m.check(rt)
		if m.ends[0].over || m.ends[1].over {
			return
		}
		for i, e := range m.ends {
			require.Len(rt, append(e.read, e.in...), len(m.ends[1-i].wrote))
		}
	})
}
