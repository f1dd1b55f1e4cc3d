package conn

import "github.com/smcgw/smcgw/gateway/internal/loop"

// bulkTurn is the position of a bulk pump in its shard's bulk list.
//
//	idle ◄── step ── queued        any ── a step has panicked ──► stopped
//	  └── later ──────►
type bulkTurn uint8

const (
	bulkIdle bulkTurn = iota
	bulkQueued
	bulkStopped
)

// bulk is the common part of relay and rawRelay, the pumps between an app leg and the wire
// leg, which move bytes in steps of the shard's bulk list.
type bulk struct {
	f  *Flow
	s  *loop.Shard
	fd int // the app leg; -1 until there is one
	legEdges

	pump loop.BulkMember // the pump that embeds this
	turn bulkTurn

	lastBytes lastBytes // whether the app's reset waits for its last bytes
}

func newBulk(f *Flow, pump loop.BulkMember) bulk { return bulk{f: f, s: f.Shard, fd: -1, pump: pump} }

// later puts the pump on the bulk list unless it is there already.
func (b *bulk) later() {
	if b.turn == bulkIdle {
		b.turn = bulkQueued
		b.s.LaterBulk(b.pump)
	}
}

// placed reports whether the application's reset may leave, as carry.placed does: the wire leg
// drops what it has not sent yet. arrived says that the peer's TCP has all bytes.
func (b *bulk) placed(arrived bool) bool {
	if arrived || b.lastBytes == givenUp {
		return true
	}
	if b.lastBytes == notAwaited {
		b.lastBytes = awaited
		b.lastBytes.giveUpLater(b.s, b.f, b.later)
	}
	b.f.wire.Ask(func() { b.f.post(b.later) })
	return false
}

// begins marks the start of a step. It returns false if the pump has been stopped.
func (b *bulk) begins() bool {
	if b.turn == bulkStopped {
		return false
	}
	b.turn = bulkIdle
	return true
}

// Owner implements loop.Member.
func (b *bulk) Owner() loop.Owner { return b.f }

// Event implements loop.Member.
func (b *bulk) Event(edges uint32) {
	b.take(edges)
	b.later()
}

// Stop implements loop.BulkMember.
func (b *bulk) Stop() { b.turn = bulkStopped }
