package gateway

import "github.com/smcgw/smcgw/negotiate"

// bulkPump is a pump whose work is bulky: it passes through a TCP stack in this
// process. Its steps wait for their turn in the shard's bulk list.
type bulkPump interface {
	pump
	// step moves at most one record's worth of bytes each way and returns how many
	// bytes it moved. A pump that has more to do puts itself on the list again.
	step() (moved int)
	// stop ends all steps: one has panicked, and bytes that it had taken may be lost.
	stop()
}

const (
	// bulkTurn is how many bytes the relays of a shard may begin to move in one turn,
	// all of them together: one record. Flows with an rdma carrier never wait for more.
	bulkTurn = relayChunk
	// bulkStep is what a step counts for at least: a small record costs a pass through
	// the stack, too.
	bulkStep = 4 << 10
)

// bulkList holds the pumps that wait for their step, the first one first.
type bulkList struct {
	list []bulkPump
	head int
}

func (l *bulkList) len() int { return len(l.list) - l.head }

func (l *bulkList) push(p bulkPump) { l.list = append(l.list, p) }

func (l *bulkList) pop() bulkPump {
	p := l.list[l.head]
	l.list[l.head] = nil
	if l.head++; 2*l.head >= len(l.list) {
		n := copy(l.list, l.list[l.head:])
		clear(l.list[n:])
		l.list, l.head = l.list[:n], 0
	}
	return p
}

// runBulk takes steps of the relays, in turn, until the budget of the turn is spent.
func (s *shard) runBulk() bool {
	if s.bulk.len() == 0 {
		return false
	}
	for spent := 0; spent < bulkTurn && s.bulk.len() > 0; {
		spent += s.stepBulk()
	}
	return true
}

func (s *shard) stepBulk() (cost int) {
	var stepped int
	defer s.contain(&stepped)
	cost = bulkStep
	p := s.bulk.pop()
	s.about = p.owner()
	sound := false
	defer func() {
		if !sound {
			p.stop()
		}
	}()
	cost = max(cost, p.step())
	sound = true
	return cost
}

// relayBuffer returns the memory through which the relays of the shard move bytes:
// one record. Its contents last until the next use.
func (s *shard) relayBuffer() []byte {
	if s.chunk == nil {
		s.chunk = make([]byte, negotiate.DataHeaderLen+relayChunk)
	}
	return s.chunk
}
