package loop

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// floodedCQ is the completion queue of an adapter: it fills while it is polled, with as many as fit
// each time, until left are taken.
type floodedCQ struct {
	verbs.CQ
	left, polls int
}

func (c *floodedCQ) Poll(wcs []verbs.WC) (int, error) {
	c.polls++
	n := min(len(wcs), c.left)
	c.left -= n
	return n, nil
}

// floodedShard is a shard that does not run, with a flood and a queue with one completion after it.
func floodedShard(t *testing.T, left int) (s *Shard, flood, other *floodedCQ) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(s.CloseFDs)
	flood, other = &floodedCQ{left: left}, &floodedCQ{left: 1}
	s.AddQueue(NewQueue(flood))
	s.AddQueue(NewQueue(other))
	return s, flood, other
}

// TestFloodHasAShareOfTheTurn: a queue that fills as fast as it is polled does not keep a turn from
// its end. The shard comes back for the rest at once, without arming.
func TestFloodHasAShareOfTheTurn(t *testing.T) {
	const rest = 5
	s, flood, other := floodedShard(t, 3*wcTurn+rest)
	d := &fakeDriver{}
	s.AddDriver(d)
	posted := 0
	for turn := 1; turn <= 4; turn++ {
		s.Post(func() { posted++ })
		worked, next := s.turn(time.Now())
		require.True(t, worked)
		require.Equal(t, turn, posted)
		require.Zero(t, other.left)
		require.Equal(t, max(0, (3-turn)*wcTurn+rest), flood.left)
		s.wait(make([]unix.EpollEvent, 1), time.Now(), next, worked, false)
	}
	require.Zero(t, d.arms.Load(), "it would sleep")
	worked, _ := s.turn(time.Now())
	require.False(t, worked)
}

// TestCollectTakesWhatIsThere: not only the share of a turn, but of a flood no more than fits in the queue.
func TestCollectTakesWhatIsThere(t *testing.T) {
	s, whole, other := floodedShard(t, 10*wcTurn)
	endless := &floodedCQ{left: 1 << 40}
	q := NewQueue(endless)
	q.depth = 2 * wcTurn
	s.AddQueue(q)
	s.Collect()
	require.Zero(t, whole.left)
	require.Zero(t, other.left)
	require.Equal(t, 1<<40-2*wcTurn, endless.left)
}

// collector collects when a completion of its own is handed to it.
type collector struct {
	s      *Shard
	taken  int
	panics []any
}

func (c *collector) Owner() Owner   { return c }
func (c *collector) Panicked(r any) { c.panics = append(c.panics, r) }
func (c *collector) Complete(*verbs.WC) {
	if c.taken++; c.taken == 2 {
		c.s.Collect()
	}
}

// TestCollectInComplete: the owner of such a completion ends, and those after it are still handed over,
// once. The shard collects for others.
func TestCollectInComplete(t *testing.T) {
	s, flood, other := floodedShard(t, 5)
	c := &collector{s: s}
	s.cqs[0].Members[0] = c
	s.turn(time.Now())
	require.Len(t, c.panics, 1)
	require.Equal(t, 5, c.taken)
	require.Zero(t, flood.left)
	require.Zero(t, other.left)
	flood.left = 1
	s.Collect()
	require.Equal(t, 6, c.taken)
}

// TestLaneLeavesBehindItsCompletions: the room of a queue pair is free when its completions have been taken,
// which takes several turns in a flood.
func TestLaneLeavesBehindItsCompletions(t *testing.T) {
	for name, c := range map[string]struct{ left, turns int }{
		"quiet":           {0, 2},
		"share of a turn": {wcTurn - 1, 2},
		"several turns":   {2*wcTurn - 1, 3},
		"as many as fit":  {3 * wcTurn, 4},
		"more and more":   {1 << 40, 4},
	} {
		t.Run(name, func(t *testing.T) {
			s, flood, _ := floodedShard(t, 0)
			ln := &Lane{Queue: s.cqs[0]}
			ln.depth = 3 * wcTurn
			ln.used.Store(7)
			flood.left = 0
			s.turn(time.Now())
			flood.left = c.left
			ln.Leave(s, 7)
			s.runPosted() // after the poll of its turn
			turns := 1
			for ; ln.Used() > 0; turns++ {
				s.turn(time.Now())
			}
			require.Equal(t, c.turns, turns)
		})
	}
}

// TestLaneLeavesAHaltedShard: which polls no more.
func TestLaneLeavesAHaltedShard(t *testing.T) {
	s, _, _ := floodedShard(t, 0)
	ln := &Lane{Queue: s.cqs[0]}
	ln.depth = laneDepth
	ln.used.Store(7)
	ln.Leave(s, 3)
	s.Halt()
	require.Equal(t, 4, ln.Used())
	ln.Leave(s, 4)
	require.Zero(t, ln.Used())
}

// lostCQ is a completion queue that has overrun: it holds nothing, and says so for ever.
type lostCQ struct{ verbs.CQ }

func (lostCQ) Poll([]verbs.WC) (int, error) { return 0, verbs.ErrCQOverrun }

// TestQueueFailsOnce: a queue that has failed is in the log once, however often the shard
// turns.
func TestQueueFailsOnce(t *testing.T) {
	var log bytes.Buffer
	s, err := New(0, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	t.Cleanup(s.CloseFDs)
	for range 2 {
		s.AddQueue(NewQueue(lostCQ{}))
	}
	for range 100 {
		s.turn(time.Now())
	}
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("poll completion queue")), log.String())
}

// TestReaperKeepsOrder: what a job puts is done after what was put before, and Close waits
// for all.
func TestReaperKeepsOrder(t *testing.T) {
	r := NewReaper()
	var did []int
	began, goOn := make(chan struct{}), make(chan struct{})
	r.Put(func() {
		close(began)
		<-goOn
		did = append(did, 0)
		r.Put(func() { did = append(did, 3) })
	})
	<-began
	r.Put(func() { did = append(did, 1) })
	r.Put(func() { did = append(did, 2) })
	close(goOn)
	r.Close()
	require.Equal(t, []int{0, 1, 2, 3}, did)
}
