package netstack

import "encoding/binary"

// translation is the difference between the sequence space of the application's
// SYN, which the wire sees, and that of gVisor's own SYN, which it does not. It
// is set once, before flow.ready.
type translation struct {
	seq  uint32 // ISN of the application less ISN of gVisor
	ts   uint32 // timestamp of the application's SYN less that of gVisor's
	wsNS uint8  // shift gVisor applies to the windows it announces
	ws   uint8  // shift the peer applies: the one of the application's SYN
}

// out rewrites the TCP header t that gVisor sends. sum is false where the
// checksum field holds the pseudo header only (offloaded): it does not cover
// what changes.
func (x *translation) out(t []byte, sum bool) {
	e := editor{t: t}
	e.put32(4, seqOf(t)+x.seq)
	if x.wsNS != x.ws {
		w := uint64(binary.BigEndian.Uint16(t[14:])) << x.wsNS >> x.ws
		e.put16(14, uint16(min(w, 0xffff)))
	}
	for kind, off, n, i, ok := nextOption(t, minTCPHeader); ok; kind, off, n, i, ok = nextOption(t, i) {
		if kind == kindTS && n == 8 {
			e.put32(off, binary.BigEndian.Uint32(t[off:])+x.ts)
		}
	}
	if sum {
		e.finish()
	}
}

// in rewrites the TCP header t that arrives for gVisor. The shim has verified
// the checksum and nobody looks at it again.
func (x *translation) in(t []byte) {
	if flagsOf(t)&flagACK == 0 {
		return
	}
	binary.BigEndian.PutUint32(t[8:], ackOf(t)-x.seq)
	for kind, off, n, i, ok := nextOption(t, minTCPHeader); ok; kind, off, n, i, ok = nextOption(t, i) {
		switch {
		case kind == kindTS && n == 8:
			sub32(t[off+4:], x.ts)
		case kind == kindSACK:
			for ; n >= 4; off, n = off+4, n-4 {
				sub32(t[off:], x.seq)
			}
		}
	}
}

func sub32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)-v) }

// editor changes fields of a TCP header and the checksum with them (RFC 1624).
type editor struct {
	t   []byte
	sum uint64 // ~old + new of every changed word
}

func (e *editor) put32(off int, v uint32) {
	old := binary.BigEndian.Uint32(e.t[off:])
	binary.BigEndian.PutUint32(e.t[off:], v)
	if off&1 == 1 { // the bytes stand in the other half of their words
		old, v = swapPairs(old), swapPairs(v)
	}
	e.sum += uint64(^uint16(old>>16)) + uint64(^uint16(old)) + uint64(v>>16) + uint64(v&0xffff)
}

func (e *editor) put16(off int, v uint16) {
	old := binary.BigEndian.Uint16(e.t[off:])
	binary.BigEndian.PutUint16(e.t[off:], v)
	e.sum += uint64(^old) + uint64(v)
}

func swapPairs(v uint32) uint32 { return v<<8&0xff00ff00 | v>>8&0x00ff00ff }

func (e *editor) finish() {
	s := e.sum + uint64(^binary.BigEndian.Uint16(e.t[16:]))
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	binary.BigEndian.PutUint16(e.t[16:], ^uint16(s))
}
