package model

import "slices"

// order is the memory order of one access, as C names it.
type order uint8

const (
	relaxed order = iota
	acquire
	release
	latest // of loads: relaxed, and not an old value
)

// memory says how far shared memory may stray from one order of all accesses.
type memory uint8

const (
	// sc: every access takes effect at once.
	sc memory = iota
	// tso: a processor's stores become visible in their order, but late. With two threads, each of which writes words
	// of its own, that is what a machine does on which each store is a release and each load an acquire.
	tso
	// weak: what C promises, as arm64 uses it: relaxed stores become visible in any order, relaxed loads return old
	// values. Not explored are loads that return what is stored later (load buffering): where an access must not be
	// moved before a load, the check for data races stands in, see ring.
	weak
)

var memories = map[memory]string{sc: "sc", tso: "tso", weak: "weak"}

// Threads.
const (
	producer = iota
	consumer
)

// word names a word of shared memory among those of its writer.
type word uint8

// Words of the producer, for each connection.
const (
	head word = iota
	base
	size // order, in the layout: here the size itself
	ksent
	nx
	x0 // two transitions, r and k in one
	x1
	want
	cells // what was stored into the ring; never loaded
	producerWords
)

// Words of the consumer: sleeps are the process's, for each slot, and the others, which come after, a connection's.
const (
	sleeps word = iota
	tail
	cx
	arm
	room
	flags
	copied        // what was copied from the ring; never loaded
	consumerWords = iota - 1
)

const (
	connections = 2
	words       = connections * int(producerWords)
)

// view is the newest store of each word of one writer that somebody must see.
type view [words]uint8

func (v *view) join(o *view) {
	for i := range v {
		v[i] = max(v[i], o[i])
	}
}

// message is one store.
type message struct {
	value uint16
	at    uint8 // counts the stores of the word
	view  view  // what a load that acquires it must see
}

// half of the memory is what one thread writes and the other one reads.
type half struct {
	stores   [words][]message // from the reader's view on
	now      view             // the newest
	released view             // at the writer's last fence
	seen     view             // by the reader
	pending  view             // by the reader's relaxed loads: seen after its next fence
	fenced   view             // what fences have put into one order
}

func newHalf() (h half) {
	for w := range h.stores {
		h.stores[w] = []message{{}}
	}
	return h
}

func (h *half) forget() {
	for w := range h.stores {
		for h.stores[w][0].at < h.seen[w] {
			h.stores[w] = h.stores[w][1:]
		}
	}
}

// store by thread t of its own word.
func (s *state) store(t int, w word, value uint16, o order) {
	h := &s.memory[t]
	h.now[w]++
	if h.now[w] > 250 {
		s.fail("no end: a word is stored again and again")
	}
	m := message{value: value, at: h.now[w], view: h.released}
	if o == release || s.memoryOrder() != weak {
		m.view = h.now
	}
	m.view[w] = m.at
	h.stores[w] = append(slices.Clip(h.stores[w]), m)
	if s.memoryOrder() == sc {
		h.seen = h.now
		h.forget()
	}
}

// mark stores into memory that is no word: the other thread must come after it.
func (s *state) mark(t int, w word) uint8 {
	h := &s.memory[t]
	h.now[w]++
	h.stores[w] = []message{{at: h.now[w]}}
	if s.memoryOrder() == sc {
		h.seen = h.now
	}
	return h.now[w]
}

// load by thread t of a word of the other thread: any value that it may still see.
func (s *state) load(t int, w word, o order) uint16 {
	h := &s.memory[1-t]
	l := h.stores[w]
	i := len(l) - 1
	if o != latest {
		i = s.choose(len(l))
	}
	m := &l[i]
	h.seen[w] = max(h.seen[w], m.at)
	if o == acquire || s.memoryOrder() != weak {
		h.seen.join(&m.view)
	}
	h.pending.join(&m.view)
	h.forget()
	return m.value
}

// newest is what the kernel sees of a word, futex() for example.
func (s *state) newest(t int, w word) uint16 {
	l := s.memory[1-t].stores[w]
	return l[len(l)-1].value
}

// fence is atomic_thread_fence(memory_order_seq_cst).
func (s *state) fence(t int) {
	own, other := &s.memory[t], &s.memory[1-t]
	other.seen.join(&other.pending)
	other.seen.join(&other.fenced)
	other.fenced = other.seen
	other.forget()
	own.released = own.now
	own.fenced = own.now
}

// observe makes thread t see what the other one had stored before a system call: the socket's lock orders both.
func (s *state) observe(t int, v *view) {
	h := &s.memory[1-t]
	h.seen.join(v)
	h.forget()
}

// appendSince writes what a view has beyond what was seen.
func (v *view) appendSince(b []byte, seen *view, words int) []byte {
	for w, d := range v[:words] {
		if d > seen[w] {
			b = append(b, byte(w), d-seen[w])
		}
	}
	return append(b, 0xff)
}

// append writes what matters of a half: numbers of stores count from the reader's view. There are stores of the first
// words only.
func (h *half) append(b []byte, words int, weakly bool) []byte {
	for w, l := range h.stores[:words] {
		b = append(b, byte(len(l)))
		for i := range l {
			b = append(b, byte(l[i].value), byte(l[i].value>>8))
			if l[i].at > h.seen[w] || weakly {
				b = l[i].view.appendSince(b, &h.seen, words)
			}
		}
	}
	for _, v := range []*view{&h.now, &h.released, &h.pending, &h.fenced} {
		b = v.appendSince(b, &h.seen, words)
	}
	return b
}

// What moves in the kernel's stream. Data are numbered from 1.
const (
	token   = 0
	finMark = 0xff
	rstMark = 0xfe
)

// segment is one byte on its way, or the end.
type segment struct {
	value uint8
	view  view // what its sender had stored
}

// stream is one direction of a kernel TCP connection.
type stream struct {
	way     []segment // the sender's queue and the network: not acknowledged
	queue   []uint8   // the receiver's
	arrived view      // what the sender had stored before the last byte that arrived
	edge    bool      // something arrived since the last epoll_wait()
	fin     bool      // arrived
	rst     bool
	closed  bool // the receiver is gone: who sends gets an error
}

// full tells whether send() would say EAGAIN.
func (k *stream) full(s *state) bool { return len(k.way) >= s.sndbuf }

func (s *state) send(k *stream, value uint8) {
	k.way = append(slices.Clip(k.way), segment{value, s.memory[producer].now})
}

// arrive moves one segment to the receiver.
func (k *stream) arrive() {
	g := k.way[0]
	k.way = k.way[1:]
	k.arrived, k.edge = g.view, true
	switch g.value {
	case finMark:
		k.fin = true
	case rstMark:
		k.rst = true
	default:
		k.queue = append(slices.Clip(k.queue), g.value)
	}
}

// canArrive: the receive buffer has room.
func (k *stream) canArrive(s *state) bool {
	return len(k.way) > 0 && !k.closed && (k.way[0].value >= rstMark || len(k.queue) < s.rcvbuf)
}

func (k *stream) ended() bool    { return k.fin || k.rst }
func (k *stream) readable() bool { return len(k.queue) > 0 || k.ended() }

// receive is recv() of at most n bytes without waiting.
func (s *state) receive(k *stream, n int) (got []uint8) {
	s.observe(consumer, &k.arrived)
	n = min(n, len(k.queue))
	got, k.queue = k.queue[:n], k.queue[n:]
	return got
}

func (k *stream) append(b []byte, seen *view, words int) []byte {
	b = append(b, byte(len(k.way)))
	for i := range k.way {
		b = append(b, k.way[i].value)
		b = k.way[i].view.appendSince(b, seen, words)
	}
	b = append(b, byte(len(k.queue)))
	b = append(b, k.queue...)
	return append(k.arrived.appendSince(b, seen, words), bits(k.edge, k.fin, k.rst, k.closed))
}

func bits(flags ...bool) (b byte) {
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}
