package model

import (
	"cmp"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func newState(r *run) *state {
	s := &state{run: r, memory: [2]half{newHalf(), newHalf()}}
	s.p.promotions, s.p.demotions = uint8(r.promotions), uint8(r.demotions)
	for i := range r.conns {
		p, c := &s.p.conn[i], &s.c.conn[i]
		p.size = uint8(r.smallest)
		s.memory[producer].stores[word(i)*producerWords+size][0].value = uint16(r.smallest)
		if r.promoted {
			p.ring, p.first, p.nx, c.cx, c.nx = true, true, 1, 1, 1
			s.memory[producer].stores[word(i)*producerWords+nx][0].value = 1
			s.memory[consumer].stores[word(i)*consumerWords+cx][0].value = 1
		}
	}
	return s
}

// one is one connection with the smallest ring.
func one(name string, c config) config {
	c.name, c.conns = name, cmp.Or(c.conns, 1)
	c.bytes, c.smallest, c.largest = cmp.Or(c.bytes, 3), cmp.Or(c.smallest, 2), cmp.Or(c.largest, 2)
	c.sndbuf, c.rcvbuf = cmp.Or(c.sndbuf, 4), cmp.Or(c.rcvbuf, 2)
	return c
}

// configs are explored in each memory. All begin in a kernel extent unless they say promoted.
var configs = []config{
	one("blocking", config{mode: blockingRead, promotions: 1, demotions: 1}),
	one("level", config{mode: levelWait, promotions: 1, demotions: 1}),
	one("edge", config{mode: edgeWait, promotions: 1, demotions: 1, bytes: 2, largest: 1, smallest: 1}),
	one("slot", config{mode: slotWait, conns: 2, bytes: 1, promoted: true, noEnd: true}),
	one("slot, one end", config{mode: slotWait, bytes: 2, smallest: 1, largest: 1, promotions: 1, demotions: 1}),
	one("spill and return", config{mode: blockingRead, promotions: 1, promoted: true, smallest: 1, largest: 1}),
	one("grow", config{mode: blockingRead, smallest: 1, promoted: true}),
	one("extend", config{mode: blockingRead, bytes: 2, smallest: 1, promoted: true, blocks: true, extends: true}),
	one("extend, freeze", config{mode: blockingRead, bytes: 2, smallest: 1, promoted: true, rcvbuf: 4, extends: true, freeze: true}),
	one("room", config{mode: blockingRead, promoted: true, blocks: true, chunks: true}),
	one("recall", config{mode: blockingRead, bytes: 2, promotions: 1, recall: true}),
	one("recall, room", config{mode: blockingRead, bytes: 2, smallest: 1, largest: 1, promoted: true, recall: true, blocks: true}),
	one("freeze", config{mode: blockingRead, bytes: 2, promotions: 1, rcvbuf: 4, freeze: true}),
	one("freeze, promoted", config{mode: blockingRead, promoted: true, rcvbuf: 4, freeze: true}),
	one("freeze, room", config{mode: blockingRead, bytes: 2, smallest: 1, largest: 1, promoted: true, rcvbuf: 4, freeze: true, blocks: true}),
	one("producer killed", config{mode: blockingRead, bytes: 2, smallest: 1, largest: 1, promotions: 1, demotions: 1, killP: true}),
	one("consumer killed", config{mode: blockingRead, bytes: 2, smallest: 1, largest: 1, promotions: 1, demotions: 1, killC: true}),
	one("consumer killed, room", config{mode: blockingRead, bytes: 2, smallest: 1, largest: 1, promoted: true, blocks: true, killC: true}),
}

// thorough tells whether larger bounds are explored, too.
func thorough() bool { return os.Getenv("SMCGW_MODEL") == "all" }

func TestModel(t *testing.T) {
	for _, c := range configs {
		for _, m := range []memory{sc, tso, weak} {
			if m == tso && !thorough() {
				continue // weak allows all of it
			}
			c := c
			c.memory = m
			if thorough() {
				c.bytes++
				c.chunks = true
				c.largest = max(c.largest, 2)
			}
			t.Run(c.name+"/"+memories[m], func(t *testing.T) {
				t.Parallel()
				r, err := explore(c)
				t.Logf("%d states, %d ends", len(r.seen), r.ends)
				require.NoError(t, err)
				require.NotZero(t, r.ends)
			})
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
