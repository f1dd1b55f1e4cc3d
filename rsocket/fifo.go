package rsocket

// fifo is a queue in a ring that grows with the number of its elements, since most connections are idle. The zero fifo
// is empty; its user bounds it.
type fifo[T any] struct {
	ring  []T // length a power of two
	first uint32
	len   uint32
}

// smallFifo is the initial length of a ring.
const smallFifo = 2

// oldest returns the oldest element; the pointer is valid until the next push.
func (q *fifo[T]) oldest() *T { return q.at(0) }

func (q *fifo[T]) at(i uint32) *T { return &q.ring[(q.first+i)&uint32(len(q.ring)-1)] }

func (q *fifo[T]) push(v T) {
	if int(q.len) == len(q.ring) {
		q.grow()
	}
	q.len++
	*q.at(q.len - 1) = v
}

func (q *fifo[T]) grow() {
	ring := make([]T, max(smallFifo, 2*len(q.ring)))
	for i := range q.len {
		ring[i] = *q.at(i)
	}
	q.ring, q.first = ring, 0
}

// drop removes the oldest element.
func (q *fifo[T]) drop() {
	q.first++
	q.len--
}
