package loop

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// laneDepth is how many completions a lane holds at most: those of about sixty links.
const laneDepth = 1 << 15

// Lane is one completion queue of an adapter on a shard. An adapter that has no room for
// a completion ends every queue pair of the queue. So queue pairs are admitted to it only
// while all of their work requests together fit.
type Lane struct {
	*Queue
	used atomic.Int64 // work requests of the queue pairs that were admitted
}

// Lanes are the completion queues of an adapter: as many for each shard as its queue
// pairs need.
type Lanes struct {
	dev   verbs.Device
	depth int
	mu    sync.Mutex // held by Admit alone, which may block
	of    []atomic.Pointer[[]*Lane]
}

// NewLanes returns those of a device, none yet.
func NewLanes(dev verbs.Device, shards int) *Lanes {
	return &Lanes{dev: dev, depth: min(laneDepth, dev.Attr().MaxCQE), of: make([]atomic.Pointer[[]*Lane], shards)}
}

// LaneNeed is how many completions a queue pair may have pending: one for each work
// request that it holds.
func LaneNeed(c verbs.QPCap) int { return c.MaxSendWR + c.MaxRecvWR }

// Admit takes room for a queue pair. It may make a completion queue, and block.
func (ls *Lanes) Admit(s *Shard, need int) (*Lane, error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if need > ls.depth {
		return nil, fmt.Errorf("completion queue of %d for %d work requests: %w", ls.depth, need, verbs.ErrInvalid)
	}
	list := ls.OfShard(s)
	for _, ln := range list {
		if ln.used.Load()+int64(need) <= int64(ln.depth) { // others only make more room
			ln.used.Add(int64(need))
			return ln, nil
		}
	}
	cq, err := ls.dev.CreateCQ(verbs.CQAttr{Depth: ls.depth, Vector: s.ID()})
	if err != nil {
		return nil, fmt.Errorf("completion queue: %w", err)
	}
	ln := &Lane{Queue: NewQueue(cq)}
	ln.depth = ls.depth
	ln.used.Store(int64(need))
	longer := append(append([]*Lane(nil), list...), ln)
	ls.of[s.ID()].Store(&longer)
	s.Post(func() { s.AddQueue(ln.Queue) })
	return ln, nil
}

// OfShard returns the lanes of a shard.
func (ls *Lanes) OfShard(s *Shard) []*Lane {
	if list := ls.of[s.ID()].Load(); list != nil {
		return *list
	}
	return nil
}

// All returns every lane.
func (ls *Lanes) All() (list []*Lane) {
	for i := range ls.of {
		if of := ls.of[i].Load(); of != nil {
			list = append(list, *of...)
		}
	}
	return list
}

// Used returns how much of the lane is taken.
func (ln *Lane) Used() int { return int(ln.used.Load()) }

// Leave returns the room of a queue pair that was closed. Its completions may be in
// the queue still: they are not, once a turn of the shard has emptied that, or has taken as
// many as fit.
func (ln *Lane) Leave(s *Shard, need int) {
	s.Post(func() { ln.leaveBehind(s, need, ln.emptied, (ln.depth+wcTurn-1)/wcTurn) })
}

// leaveBehind is Leave after the next turn, or after several if they do not empty the queue.
func (ln *Lane) leaveBehind(s *Shard, need int, emptied uint64, turns int) {
	s.Post(func() {
		if turns > 1 && ln.emptied == emptied {
			ln.leaveBehind(s, need, emptied, turns-1)
			return
		}
		ln.used.Add(-int64(need))
	})
}
