package loop

// BulkMember is a member whose bytes pass through a TCP stack in this process, which is costly. Its steps wait for
// their turn in the shard's bulk list.
type BulkMember interface {
	Work
	// Step moves at most [BulkTurn] bytes each way and returns how many it moved. A member that has more to do queues
	// itself again.
	Step() (moved int)
	// Stop ends all steps, because one has panicked: bytes that it had taken may be lost.
	Stop()
}

const (
	// BulkTurn is the budget of a turn, in bytes, for all bulk members of a shard together: one step of one member.
	// Other members never wait for more.
	BulkTurn = 64 << 10
	// bulkStep is the least cost of a step: even a small record requires a pass through the stack.
	bulkStep = 4 << 10
)

// bulkList is the queue of the members that wait for a step.
type bulkList struct {
	list []BulkMember
	head int
}

func (l *bulkList) len() int { return len(l.list) - l.head }

func (l *bulkList) push(m BulkMember) { l.list = append(l.list, m) }

func (l *bulkList) pop() BulkMember {
	m := l.list[l.head]
	l.list[l.head] = nil
	if l.head++; 2*l.head >= len(l.list) {
		n := copy(l.list, l.list[l.head:])
		clear(l.list[n:])
		l.list, l.head = l.list[:n], 0
	}
	return m
}

// LaterBulk queues a member for a step. The caller is on the shard.
func (s *Shard) LaterBulk(m BulkMember) { s.bulk.push(m) }

// runBulk runs steps of the bulk members, in order, until the budget of the turn is spent.
func (s *Shard) runBulk() bool {
	if s.bulk.len() == 0 {
		return false
	}
	for spent := 0; spent < BulkTurn && s.bulk.len() > 0; {
		spent += s.stepBulk()
	}
	return true
}

func (s *Shard) stepBulk() (cost int) {
	var stepped int
	defer s.contain(&stepped)
	cost = bulkStep
	m := s.bulk.pop()
	s.about = m.Owner()
	sound := false
	defer func() {
		if !sound {
			m.Stop()
		}
	}()
	cost = max(cost, m.Step())
	sound = true
	return cost
}

// BulkBuffer returns a buffer of n bytes through which bulk members move bytes. All share it: its contents last only
// until the next use.
func (s *Shard) BulkBuffer(n int) []byte {
	if len(s.chunk) < n {
		s.chunk = make([]byte, n)
	}
	return s.chunk[:n]
}
