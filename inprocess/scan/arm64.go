package scan

import "encoding/binary"

// word is an arm64 instruction.
type word uint32

// enters tells whether the instruction is SVC (Arm Architecture Reference Manual, C4.1, as for all others here).
func (w word) enters() bool { return w&0xffe0001f == 0xd4000001 }

// setsNumber tells whether it is MOVZ to w8 or x8 without a shift, and returns its constant.
func (w word) setsNumber() (int64, bool) {
	return int64(w >> 5 & 0xffff), w&0x7fe0001f == 0x52800008
}

// keepsNumber tells whether x8 surely keeps its value when execution goes on after the instruction.
func (w word) keepsNumber() bool {
	const x8 = 8
	switch {
	case w == 0xd503201f, w&0xffffff3f == 0xd503241f: // NOP, BTI
		return true
	case w&0xff000000 == 0x54000000, w&0x7e000000 == 0x34000000, w&0x7e000000 == 0x36000000: // B.cond, CBZ, CBNZ, TBZ, TBNZ
		return true
	case w>>25&5 == 4: // loads and stores, which may also write their base register
		return w&0x1f != x8 && w>>5&0x1f != x8 && w>>10&0x1f != x8
	case w>>26&7 == 4, w>>25&7 == 5: // data processing: immediate, register
		return w&0x1f != x8
	default:
		return false
	}
}

// target returns where a jump leads, in words from the instruction.
func (w word) target() (int64, bool) {
	signed := func(v word, bits uint) int64 { return int64(int32(v<<(32-bits))) >> (32 - bits) }
	switch {
	case w&0xfc000000 == 0x14000000: // B
		return signed(w, 26), true
	case w&0xff000000 == 0x54000000, w&0x7e000000 == 0x34000000: // B.cond, CBZ, CBNZ
		return signed(w>>5, 19), true
	case w&0x7e000000 == 0x36000000: // TBZ, TBNZ
		return signed(w>>5, 14), true
	default:
		return 0, false
	}
}

// indirect tells whether it is BR.
func (w word) indirect() bool { return w&0xfffffc1f == 0xd61f0000 }

// sweepARM64 returns the instructions of a function that enter the kernel.
func sweepARM64(b []byte) (entries []entry) {
	var number int64
	var known, switches bool
	set := 0
	var jumps []int64
	sets := map[int]int{}
	for at := 0; at+4 <= len(b); at += 4 {
		w := word(binary.LittleEndian.Uint32(b[at:]))
		if rel, is := w.target(); is {
			jumps = append(jumps, int64(at)+4*rel)
		}
		switches = switches || w.indirect()
		if w.enters() {
			sets[len(entries)] = set
			entries = append(entries, entry{at, number, known}) // x8 keeps its value
			continue
		}
		if n, is := w.setsNumber(); is {
			number, known, set = n, true, at+4
		} else {
			known = known && w.keepsNumber()
		}
	}
	for i := range entries {
		e := &entries[i]
		e.known = e.known && !switches
		for _, to := range jumps {
			e.known = e.known && (to < int64(sets[i]) || to > int64(e.at))
		}
	}
	return entries
}
