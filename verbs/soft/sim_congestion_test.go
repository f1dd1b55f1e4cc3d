package soft

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// The reference neighbour behaves as TCP does: alone it fills the line, two
// share it.
func TestSimTCP(t *testing.T) {
	d := &simDumbbell{simWorld: newSimWorld(t, 1), line: &simPipe{rate: gigabit.rate, limit: gigabit.queue}}
	a, b := d.tcp(0), d.tcp(1)
	d.run(500*time.Millisecond, nil)
	s := d.during(time.Second, &a.bytes, &b.bytes)
	t.Logf("Reno and Reno: %.2f %.2f of the line, fairness %.3f, %d+%d halvings", s[0], s[1], jain(s), a.halvings, b.halvings)
	require.Greater(t, s[0]+s[1], 0.85)
	require.Greater(t, jain(s), 0.8)
	require.Zero(t, a.timeouts+b.timeouts)
}

// tcp starts a TCP transfer through the line between hosts of its own.
func (d *simDumbbell) tcp(i byte) *simTCP {
	l, r := netip.AddrFrom4([4]byte{10, 8, 0, i + 1}), netip.AddrFrom4([4]byte{10, 9, 0, i + 1})
	way, back := d.net.route(l, r), d.net.route(r, l)
	d.wire(way, back, gigabit.rtt)
	return startTCP(d.net, way, back, time.Duration(i)*50*time.Millisecond)
}

const (
	bulkSize  = 64 << 10
	bulkDepth = 16
)

// A lone stream begins with a little, fills the line before long, and does not
// keep the queue full.
func TestCongestionAlone(t *testing.T) {
	d := newDumbbell(t, 1, 1, gigabit)
	b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
	d.run(gigabit.rtt/2, nil)
	require.Less(t, d.line.carried+d.line.drops*1100, 64<<10, "bytes of the first round trip")
	early := d.during(50*time.Millisecond, &b.bytes)[0]
	d.line.max = 0
	dropped := d.line.drops
	d.since()
	late := d.during(250*time.Millisecond, &b.bytes)[0]
	t.Logf("alone: %.2f of the line in the first 50 ms, then %.2f; %d drops, then %d; at most %d bytes queued of %d",
		early, late, dropped, d.line.drops-dropped, d.line.max, d.line.limit)
	require.Greater(t, late, 0.8)
	require.Less(t, d.lossRate(), 0.03)
}

// lossRate is how many packets the line dropped since the last call of since.
func (d *simDumbbell) lossRate() float64 {
	return float64(d.net.stats.queueDrops) / float64(d.net.stats.sent)
}

func (d *simDumbbell) since() { d.net.stats = simStats{} }

// When the line gets slower the stream does too, without losing much more than
// what was under way.
func TestCongestionBacksOff(t *testing.T) {
	d := newDumbbell(t, 2, 1, gigabit)
	b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
	d.run(150*time.Millisecond, nil)
	d.line.rate /= 10
	d.run(200*time.Millisecond, nil)
	sent, dropped := d.net.stats.sent, d.line.drops
	share := d.during(time.Second, &b.bytes)[0]
	rate := float64(d.line.drops-dropped) / float64(d.net.stats.sent-sent)
	t.Logf("a line with a tenth: %.2f of it, %.4f of the packets dropped", share, rate)
	require.Greater(t, share, 0.7)
	require.Less(t, rate, 0.05)
	d.line.rate *= 10
	d.run(200*time.Millisecond, nil)
	share = d.during(200*time.Millisecond, &b.bytes)[0]
	t.Logf("restored: %.2f of it", share)
	require.Greater(t, share, 0.7)
}

// Streams share a line, also when one was there first.
func TestCongestionFair(t *testing.T) {
	for _, n := range []int{2, 5} {
		d := newDumbbell(t, 3, n, gigabit)
		var bytes []*int
		for i := range n {
			b := newBulk(d.left[i], d.right[i], bulkSize, bulkDepth, verbs.MTU1024, time.Duration(i)*20*time.Millisecond)
			bytes = append(bytes, &b.bytes)
		}
		d.run(200*time.Millisecond, nil)
		d.since()
		s := d.during(250*time.Millisecond, bytes...)
		t.Logf("%d streams: %.2f of the line, fairness %.3f, %.4f dropped", n, s, jain(s), d.lossRate())
		require.Greater(t, sum(s), 0.8)
		require.Greater(t, jain(s), 0.85)
		require.Less(t, d.lossRate(), 0.05)
	}
}

func sum(s []float64) (all float64) {
	for _, x := range s {
		all += x
	}
	return all
}

// Beside TCP a stream takes a part and leaves one.
func TestCongestionBesideTCP(t *testing.T) {
	d := newDumbbell(t, 4, 1, gigabit)
	b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
	f := d.tcp(0)
	d.run(300*time.Millisecond, nil)
	d.since()
	s := d.during(800*time.Millisecond, &b.bytes, &f.bytes)
	t.Logf("stream %.2f, TCP %.2f of the line, fairness %.3f, %.4f dropped, %d timeouts of TCP", s[0], s[1], jain(s), d.lossRate(), f.timeouts)
	require.Greater(t, s[0], 0.15)
	require.Greater(t, s[1], 0.15)
	require.Greater(t, s[0]+s[1], 0.8)
}

// Loss that is no sign of congestion costs, but leaves a useful part.
func TestCongestionRandomLoss(t *testing.T) {
	for _, c := range []struct{ loss, least float64 }{{0.0001, 0.7}, {0.001, 0.4}, {0.01, 0.08}} {
		d := newDumbbell(t, 5, 1, gigabit)
		d.net.route(d.left[0].addr, d.right[0].addr).loss = c.loss
		b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
		d.run(50*time.Millisecond, nil)
		s := d.during(400*time.Millisecond, &b.bytes)[0]
		t.Logf("loss %.2f %%: %.3f of the line", 100*c.loss, s)
		require.Greater(t, s, c.least)
	}
}

// With ECN the queue is short: the receiver answers marks with CNPs and the
// sender slows down before anything is dropped.
func TestCongestionECN(t *testing.T) {
	line := gigabit
	line.markAt = 30_000
	d := newDumbbell(t, 6, 2, line, func(c *Config) { c.ECN = true })
	var bytes []*int
	for i := range 2 {
		b := newBulk(d.left[i], d.right[i], bulkSize, bulkDepth, verbs.MTU1024, 0)
		bytes = append(bytes, &b.bytes)
	}
	d.run(100*time.Millisecond, nil)
	d.line.max, d.line.drops = 0, 0
	s := d.during(400*time.Millisecond, bytes...)
	t.Logf("ECN: %.2f of the line, fairness %.3f, %d marks, %d drops, at most %d bytes queued of %d",
		s, jain(s), d.line.marks, d.line.drops, d.line.max, d.line.limit)
	require.Positive(t, d.line.marks)
	require.Greater(t, sum(s), 0.7)
	require.Greater(t, jain(s), 0.85)
	require.Zero(t, d.line.drops)
}

// A long fat path is filled too, by a sender that is paced there: its bursts do
// not overflow a queue that holds a quarter of what is in flight.
func TestCongestionLongPath(t *testing.T) {
	line := simLine{rate: 12.5e6, rtt: 40 * time.Millisecond, queue: 125_000}
	d := newDumbbell(t, 7, 1, line)
	b := newBulk(d.left[0], d.right[0], 256<<10, bulkDepth, verbs.MTU1024, 0)
	d.run(3*time.Second, nil)
	d.since()
	s := d.during(4*time.Second, &b.bytes)[0]
	t.Logf("100 Mbit/s, 40 ms: %.2f of the line, %.5f dropped", s, d.lossRate())
	require.Greater(t, s, 0.6)
	require.Less(t, d.lossRate(), 0.02)
}

// A small path MTU is no disadvantage beside a large one: windows are bytes.
func TestCongestionMTU(t *testing.T) {
	d := newDumbbell(t, 8, 2, gigabit)
	small := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU512, 0)
	large := newBulk(d.left[1], d.right[1], bulkSize, bulkDepth, verbs.MTU4096, 0)
	d.run(150*time.Millisecond, nil)
	s := d.during(300*time.Millisecond, &small.bytes, &large.bytes)
	t.Logf("MTU 512 %.2f, MTU 4096 %.2f of the line, fairness %.3f", s[0], s[1], jain(s))
	require.Greater(t, s[0], 0.12)
	require.Greater(t, s[1], 0.12)
}

// READ responses are paced by the window of the requester: many hosts that read
// from one do not drown its line, and share it.
func TestCongestionReads(t *testing.T) {
	d := newDumbbell(t, 9, 2, gigabit)
	var bytes []*int
	for i := range 2 {
		// The data flow from left to right, so the right side asks.
		b := newBulk(d.right[i], d.left[i], bulkSize, 8, verbs.MTU1024, 0)
		b.wr.Opcode = verbs.WRRDMARead
		bytes = append(bytes, &b.bytes)
	}
	d.run(300*time.Millisecond, nil)
	d.since()
	s := d.during(500*time.Millisecond, bytes...)
	t.Logf("READs: %.2f of the line, fairness %.3f, %.4f dropped", s, jain(s), d.lossRate())
	require.Greater(t, sum(s), 0.5)
	require.Greater(t, jain(s), 0.8)
	require.Less(t, d.lossRate(), 0.05)
}
