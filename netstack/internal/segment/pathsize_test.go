package segment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/packet"
)

const testHeaders = 52

// modelPath is a sender that knows nothing but TCP's rules and a path that drops
// what is larger than it takes. Sequence numbers begin shortly before they wrap.
type modelPath struct {
	t     require.TestingT
	p     PathSize
	whole int
	takes int
	una   uint32
	sent  uint32
	now   time.Duration
	rto   time.Duration
}

func newModelPath(t require.TestingT, v6 bool, whole, takes int) *modelPath {
	const begin = 0xffffff00
	return &modelPath{t: t, p: PathSize{V6: v6}, whole: whole, takes: takes, una: begin, sent: begin, rto: 20 * time.Millisecond}
}

// leave sends the n bytes from seq and returns where the first hole is behind
// them, and whether all arrived.
func (m *modelPath) leave(seq uint32, n int, inFlight uint32) (hole uint32, all bool) {
	end := seq + uint32(n)
	c := m.p.Send(Outgoing{
		Seq: seq, End: end, Una: m.una - inFlight, Sent: m.sent,
		Size: testHeaders + n, Headers: testHeaders, Whole: m.whole, Now: m.now,
	})
	m.check(c)
	if packet.After(end, m.sent) {
		m.sent = end
	}
	for size := c.First; seq != end; size = c.Rest {
		k := min(uint32(size-testHeaders), end-seq)
		if int(k)+testHeaders > m.takes {
			return seq, false
		}
		seq += k
	}
	return end, true
}

// check: a packet has room for bytes, is never larger than the stack's and never
// smaller than every path takes.
func (m *modelPath) check(c Cut) {
	least := LeastMTU4
	if m.p.V6 {
		least = LeastMTU6
	}
	for _, n := range []int{c.First, c.Rest} {
		require.LessOrEqual(m.t, n, m.whole)
		if n < m.whole {
			require.GreaterOrEqual(m.t, n, min(least, m.whole))
		}
	}
	require.GreaterOrEqual(m.t, c.First, c.Rest)
	require.Equal(m.t, m.p.state != sizeWhole, m.p.Limited())
	if m.p.state != sizeWhole {
		require.Less(m.t, m.p.limit, m.whole)
	}
	if m.p.state == sizeProbing {
		require.Greater(m.t, m.p.probe, m.p.limit)
	}
}

// flight sends n bytes as one burst, and what is lost of it until all has arrived.
// It returns how long the longest pause was.
func (m *modelPath) flight(n int) time.Duration {
	begin := m.now
	hole, all := m.leave(m.sent, n, 0)
	if behind := m.sent - hole; !all && int(behind) > 4*m.whole { // duplicate acknowledgements
		m.now += time.Millisecond
		m.arrived(hole)
		hole, all = m.leave(m.una, int(m.sent-m.una), 0)
	}
	for m.rto = 20 * time.Millisecond; !all; {
		m.arrived(hole)
		m.now += m.rto
		m.rto = min(2*m.rto, 5*time.Second)
		require.Less(m.t, m.now-begin, time.Minute, "does not get through: %+v", m.p)
		size := min(int(m.sent-m.una), m.whole-testHeaders)
		if hole, all = m.leave(m.una, size, 0); all && hole != m.sent {
			m.arrived(hole)
			m.rto = 20 * time.Millisecond
			hole, all = m.leave(m.una, int(m.sent-m.una), 0)
		}
	}
	m.arrived(m.sent)
	return m.now - begin
}

func (m *modelPath) arrived(ack uint32) {
	if packet.After(ack, m.una) {
		m.una = ack
		m.p.Acked(ack, m.now)
	}
	m.now += time.Millisecond
}

// best is the largest size that is looked for and fits.
func best(whole, takes, floor int) int {
	if takes >= whole {
		return whole
	}
	for i := len(plateaus) - 1; i >= 0; i-- {
		if plateaus[i] <= takes && plateaus[i] < whole && plateaus[i] >= floor {
			return plateaus[i]
		}
	}
	return floor
}

// TestPathSizeModel: whatever a path takes, and whenever that changes, everything
// gets through it soon, and in the end in packets of the largest size there is.
func TestPathSizeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		least := LeastMTU4
		if v6 {
			least = LeastMTU6
		}
		whole := rapid.SampledFrom([]int{1300, 1472, 1500, 1501, 4000, 8952, 9000, 65000}).Draw(t, "whole")
		takes := rapid.IntRange(least, 70000)
		m := newModelPath(t, v6, whole, whole)
		for range rapid.IntRange(1, 5).Draw(t, "changes") {
			m.takes = takes.Draw(t, "takes")
			for range rapid.IntRange(0, 5).Draw(t, "small flights") {
				m.flight(rapid.IntRange(1, 3000).Draw(t, "bytes"))
			}
			require.Less(t, m.flight(20*whole), 5*time.Second, "%+v", m.p)
		}
		m.now += probeAgain + time.Minute
		for range 40 {
			m.flight(20 * whole)
			m.now += 2 * probePause
		}
		require.Equal(t, best(whole, m.takes, least), m.p.largest(whole), "path of %d: %+v", m.takes, m.p)
	})
}

// TestPathSizeLosses: losses and outages of less than a second make nothing
// smaller.
func TestPathSizeLosses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModelPath(t, rapid.Bool().Draw(t, "v6"), 1500, 1500)
		for range rapid.IntRange(1, 20).Draw(t, "losses") {
			_, _ = m.leave(m.sent, rapid.IntRange(1, 60000).Draw(t, "bytes"), 0)
			left := holeAfter - time.Millisecond
			for range rapid.IntRange(0, 10).Draw(t, "repeats") {
				pause := time.Duration(rapid.IntRange(1, int(left/time.Millisecond)).Draw(t, "pause")) * time.Millisecond
				if left -= pause; left < time.Millisecond {
					break
				}
				m.now += pause
				_, _ = m.leave(m.una, min(int(m.sent-m.una), 1448), 0)
			}
			m.arrived(m.sent)
			m.now += time.Second
		}
		require.False(t, m.p.Limited())
	})
}

// TestPathSizeAnything: no order of events breaks what must hold.
func TestPathSizeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModelPath(t, rapid.Bool().Draw(t, "v6"), rapid.IntRange(1281, 9000).Draw(t, "whole"), 0)
		t.Repeat(map[string]func(*rapid.T){
			"new":    func(t *rapid.T) { m.leave(m.sent, rapid.IntRange(1, 60000).Draw(t, "bytes"), 0) },
			"repeat": func(t *rapid.T) { m.again(t) },
			"ack":    func(t *rapid.T) { m.arrived(m.una + rapid.Uint32Range(0, m.sent-m.una).Draw(t, "bytes")) },
			"wait": func(t *rapid.T) {
				m.now += time.Duration(rapid.Int64Range(0, int64(probeAgain)).Draw(t, "pause"))
			},
		})
	})
}

// again sends something again, mostly the oldest bytes.
func (m *modelPath) again(t *rapid.T) {
	if m.sent == m.una {
		return
	}
	from := m.una
	if rapid.IntRange(0, 3).Draw(t, "where") == 0 {
		from += rapid.Uint32Range(0, m.sent-m.una-1).Draw(t, "from")
	}
	m.leave(from, rapid.IntRange(1, int(min(m.sent-from, 65000))).Draw(t, "bytes"), 0)
}

// TestPathSizeSmall: what is small anyway says nothing about large packets.
func TestPathSizeSmall(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		m := newModelPath(t, v6, 1500, 0)
		m.sent += 500
		for range 50 {
			m.now += time.Second
			m.leave(m.una, 500, 0)
		}
		require.False(t, m.p.Limited())
	}
}

func TestPathSizeCandidates(t *testing.T) {
	for _, c := range []struct{ limit, lost, whole, want int }{
		{1076, 0, 1500, 1500}, // it was a partition
		{1076, 1500, 1500, 1440},
		{1076, 1440, 1500, 1380},
		{1400, 1420, 1500, 0},
		{1492, 1500, 1500, 0},
		{1400, 1500, 1400, 0}, // ICMP has told the stack
		{1280, 9000, 1472, 1472},
	} {
		p := PathSize{limit: c.limit, lost: c.lost}
		require.Equal(t, c.want, p.candidate(c.whole), "%+v", c)
	}
}
