package loop

// BulkMember is a member whose work is bulky: it passes through a TCP stack in this
// process. Its steps wait for their turn in the shard's bulk list.
type BulkMember interface {
	Work
	// Step moves at most [BulkTurn] bytes each way and returns how many bytes it moved.
	// A member that has more to do puts itself on the list again.
	Step() (moved int)
	// Stop ends all steps: one has panicked, and bytes that it had taken may be lost.
	Stop()
}

const (
	// BulkTurn is how many bytes the bulk members of a shard may begin to move in one
	// turn, all of them together: one step's. Other members never wait for more.
	BulkTurn = 64 << 10
	// bulkStep is what a step counts for at least: a small record costs a pass through
	// the stack, too.
	bulkStep = 4 << 10
)

// bulkList holds the members that wait for their step, the first one first.
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

// LaterBulk has a member take a step when its turn comes; the caller is on the shard.
func (s *Shard) LaterBulk(m BulkMember) { s.bulk.push(m) }

// runBulk takes steps of the bulk members, in turn, until the budget of the turn is
// spent.
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

// BulkBuffer returns the memory through which the bulk members of the shard move
// bytes, n of it, which is the same for all. Its contents last until the next use.
func (s *Shard) BulkBuffer(n int) []byte {
	if len(s.chunk) < n {
		s.chunk = make([]byte, n)
	}
	return s.chunk[:n]
}
