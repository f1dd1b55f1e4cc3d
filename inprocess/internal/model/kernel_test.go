package model

import "slices"

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
