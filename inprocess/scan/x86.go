package scan

import "encoding/binary"

// instruction is what the scan needs to know of an x86-64 instruction.
type instruction struct {
	size int
	// space is the opcode map: 0 for one byte, 1 after 0f, 2 after 0f 38, 3 after 0f 3a; vector
	// for all with VEX, EVEX or XOP.
	space  int
	opcode byte
	rex    byte
	modrm  byte
	// immediate is sign-extended; 0 if there is none.
	immediate int64
}

// vector is the space of instructions with a VEX, EVEX or XOP prefix.
const vector = 4

// longest is the architecture's limit on the length of an instruction.
const longest = 15

// Operand forms of an opcode, as bits.
const (
	invalid = 1 << iota
	modrm
	imm8
	imm16
	immZ // 4 bytes; 2 after 66
	immV // as immZ; 8 with REX.W
	address
	group3 // an immediate for the first two instructions of the group
)

// oneByte returns the form of an opcode of the first map (Intel SDM, volume 2, table A-2).
func oneByte(op byte) uint {
	switch {
	case op < 0x40:
		switch op & 7 {
		case 0, 1, 2, 3:
			return modrm
		case 4:
			return imm8
		case 5:
			return immZ
		default:
			return invalid
		}
	case op >= 0x50 && op <= 0x5f, op >= 0x6c && op <= 0x6f, op >= 0x90 && op <= 0x99, op >= 0x9b && op <= 0x9f, op >= 0xa4 && op <= 0xa7, op >= 0xaa && op <= 0xaf:
		return 0
	case op == 0x63, op >= 0x84 && op <= 0x8f, op >= 0xd0 && op <= 0xd3, op >= 0xd8 && op <= 0xdf, op == 0xfe, op == 0xff:
		return modrm
	case op == 0x68, op == 0xa9, op == 0xe8, op == 0xe9:
		return immZ
	case op == 0x69, op == 0x81, op == 0xc7:
		return modrm | immZ
	case op == 0x6a, op >= 0x70 && op <= 0x7f, op == 0xa8, op >= 0xb0 && op <= 0xb7, op == 0xcd, op >= 0xe0 && op <= 0xe7, op == 0xeb:
		return imm8
	case op == 0x6b, op == 0x80, op == 0x83, op == 0xc0, op == 0xc1, op == 0xc6:
		return modrm | imm8
	case op >= 0xa0 && op <= 0xa3:
		return address
	case op >= 0xb8 && op <= 0xbf:
		return immV
	case op == 0xc2, op == 0xca:
		return imm16
	case op == 0xc8:
		return imm16 | imm8
	case op == 0xc3, op == 0xc9, op == 0xcb, op == 0xcc, op == 0xcf, op == 0xd7, op >= 0xec && op <= 0xef, op == 0xf1, op == 0xf4, op == 0xf5, op >= 0xf8 && op <= 0xfd:
		return 0
	case op == 0xf6, op == 0xf7:
		return modrm | group3
	default:
		return invalid
	}
}

// twoByte returns the form of an opcode after 0f (table A-3).
func twoByte(op byte) uint {
	switch {
	case op == 0x04, op == 0x0a, op == 0x0c, op >= 0x24 && op <= 0x27, op == 0x36, op == 0x39, op >= 0x3b && op <= 0x3f:
		return invalid
	case op >= 0x05 && op <= 0x09, op == 0x0b, op == 0x0e, op >= 0x30 && op <= 0x37, op == 0x77, op >= 0xa0 && op <= 0xa2, op >= 0xa8 && op <= 0xaa, op >= 0xc8 && op <= 0xcf:
		return 0
	case op >= 0x80 && op <= 0x8f:
		return immZ
	case op == 0x0f, op >= 0x70 && op <= 0x73, op == 0xa4, op == 0xac, op == 0xba, op == 0xc2, op >= 0xc4 && op <= 0xc6:
		return modrm | imm8
	default:
		return modrm
	}
}

// vectorForm returns the form of an opcode in a map of VEX and EVEX.
func vectorForm(table, op byte) uint {
	switch table {
	case 1:
		if op == 0x77 {
			return 0
		}
		return modrm | twoByte(op)&imm8
	case 2, 5, 6:
		return modrm
	case 3:
		return modrm | imm8
	default:
		return invalid
	}
}

// decodeX86 decodes the instruction at the beginning of b. Its size is 0 if there is none.
func decodeX86(b []byte) (in instruction) {
	at := 0
	next := func() byte {
		if at >= len(b) || at >= longest {
			at = longest + 1
			return 0
		}
		at++
		return b[at-1]
	}
	var operand16, address32, repne bool
	var op byte
prefixes:
	for {
		switch op = next(); op {
		case 0x66:
			operand16 = true
		case 0x67:
			address32 = true
		case 0xf2:
			repne = true
		case 0xf0, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65:
		default:
			break prefixes
		}
		if at > longest {
			return in
		}
	}
	if op&0xf0 == 0x40 {
		in.rex, op = op, next()
	}
	var form uint
	switch {
	case op == 0x0f:
		in.space, op = 1, next()
		switch op {
		case 0x38:
			in.space, op, form = 2, next(), modrm
		case 0x3a:
			in.space, op, form = 3, next(), modrm|imm8
		default:
			form = twoByte(op)
		}
	case op == 0xc5:
		next()
		in.space, op = vector, next()
		form = vectorForm(1, op)
	case op == 0xc4, op == 0x62:
		mask := byte(0x1f)
		if op == 0x62 {
			mask = 7
		}
		table := next() & mask
		next()
		if op == 0x62 {
			next()
		}
		in.space, op = vector, next()
		form = vectorForm(table, op)
	case op == 0x8f && at < len(b) && b[at]&0x1f >= 8: // XOP; with a smaller value it is POP
		table := next() & 0x1f
		next()
		in.space, op = vector, next()
		switch table {
		case 8:
			form = modrm | imm8
		case 9:
			form = modrm
		case 10:
			form = modrm | immZ
			operand16 = false
		default:
			form = invalid
		}
	default:
		form = oneByte(op)
	}
	in.opcode = op
	if form&invalid != 0 || at > longest {
		return instruction{}
	}
	if form&modrm != 0 {
		in.modrm = next()
		at += displacement(in.modrm, b, at)
		if form&group3 != 0 && in.modrm&0x30 == 0 {
			form |= imm8
			if op == 0xf7 {
				form = form&^imm8 | immZ
			}
		}
	}
	branch := in.space == 0 && (op == 0xe8 || op == 0xe9) || in.space == 1 && op&0xf0 == 0x80
	size := 0
	switch {
	case form&immV != 0 && in.rex&8 != 0:
		size = 8
	case form&(immZ|immV) != 0:
		size = 4
		if operand16 && in.rex&8 == 0 && !branch {
			size = 2
		}
	case form&address != 0:
		size = 8
		if address32 {
			size = 4
		}
	case form&imm16 != 0 && form&imm8 != 0: // ENTER
		size = 3
	case form&imm16 != 0:
		size = 2
	case form&imm8 != 0:
		size = 1
	case in.space == 1 && op == 0x78 && (operand16 || repne): // EXTRQ, INSERTQ
		size = 2
	}
	end := at + size
	if end > longest || end > len(b) {
		return instruction{}
	}
	switch imm := b[at:end]; size {
	case 1:
		in.immediate = int64(int8(imm[0]))
	case 2:
		in.immediate = int64(int16(binary.LittleEndian.Uint16(imm)))
	case 4:
		in.immediate = int64(int32(binary.LittleEndian.Uint32(imm)))
	case 8:
		in.immediate = int64(binary.LittleEndian.Uint64(imm))
	}
	in.size = end
	return in
}

// displacement returns the size of what follows a ModRM byte: SIB byte and displacement.
func displacement(m byte, b []byte, at int) int {
	mod, rm := m>>6, m&7
	if mod == 3 {
		return 0
	}
	size := 0
	base := rm
	if rm == 4 {
		size = 1
		if at < len(b) {
			base = b[at] & 7
		}
	}
	switch {
	case mod == 1:
		size++
	case mod == 2, base == 5:
		size += 4
	}
	return size
}

// entersX86 tells whether the instruction enters the kernel.
func (in *instruction) entersX86() bool {
	return in.space == 1 && (in.opcode == 0x05 || in.opcode == 0x34) || in.space == 0 && in.opcode == 0xcd && in.immediate == -0x80
}

// target returns where a jump within the function leads, relative to the instruction's end.
func (in *instruction) target() (rel int64, ok bool) {
	short := in.space == 0 && (in.opcode&0xf0 == 0x70 || in.opcode&0xfc == 0xe0 || in.opcode == 0xeb)
	near := in.space == 0 && in.opcode == 0xe9 || in.space == 1 && in.opcode&0xf0 == 0x80
	return in.immediate, short || near
}

// indirect tells whether it is a jump to an address in memory or a register.
func (in *instruction) indirect() bool {
	return in.space == 0 && in.opcode == 0xff && in.modrm>>3&7 == 4
}

// setsNumber tells whether the instruction sets eax to a constant.
func (in *instruction) setsNumber() (int64, bool) {
	if in.space != 0 || in.rex&1 != 0 {
		return 0, false
	}
	switch {
	case in.opcode == 0xb8, in.opcode == 0xc7 && in.modrm == 0xc0:
		return in.immediate, true
	case (in.opcode == 0x31 || in.opcode == 0x33 || in.opcode == 0x29 || in.opcode == 0x2b) && in.modrm == 0xc0 && in.rex&4 == 0:
		return 0, true
	default:
		return 0, false
	}
}

// movesToA tells whether the instruction sets all of eax without reading it.
func (in *instruction) movesToA() bool {
	if _, is := in.setsNumber(); is {
		return true
	}
	if in.space != 0 {
		return false
	}
	switch in.opcode {
	case 0x89:
		return in.modrm>>6 == 3 && in.modrm&7 == 0 && in.rex&1 == 0
	case 0x8b, 0x8d:
		return in.modrm>>3&7 == 0 && in.rex&4 == 0
	case 0x58:
		return in.rex&1 == 0
	default:
		return false
	}
}

// What an instruction writes, among the operands that it names.
const (
	writesOther = iota // unknown, or rax
	writesNothing
	writesRM
	writesReg
	writesLow // the register in the opcode's low bits
)

func (in *instruction) writes() int {
	op := in.opcode
	if in.space == 1 {
		switch {
		case op&0xf0 == 0x80, op == 0x1e, op == 0x1f, op == 0x18, op == 0x10, op == 0x11, op == 0x28, op == 0x29, op == 0x12, op == 0x13, op == 0x16, op == 0x17,
			op == 0x6c, op == 0x6e, op == 0x6f, op == 0x7f, op == 0xd6, op == 0x57, op == 0xef:
			return writesNothing
		case op&0xf0 == 0x40, op == 0xaf, op == 0xb6, op == 0xb7, op == 0xbe, op == 0xbf:
			return writesReg
		case op&0xf0 == 0x90:
			return writesRM
		}
		return writesOther
	}
	if in.space != 0 {
		return writesOther
	}
	switch {
	case op&0xf8 == 0x38 && op&7 < 6, op == 0x84, op == 0x85, op == 0xa8, op == 0xa9, op&0xf8 == 0x50, op == 0x68, op == 0x6a, op&0xf0 == 0x70:
		return writesNothing
	case op == 0x90 && in.rex&1 == 0:
		return writesNothing
	case op < 0x38 && op&7 < 2, op == 0x88, op == 0x89, op == 0xc0, op == 0xc1, op >= 0xd0 && op <= 0xd3, op == 0xc6, op == 0xc7:
		return writesRM
	case op < 0x38 && op&7 < 4, op == 0x8a, op == 0x8b, op == 0x8d, op == 0x63, op == 0x69, op == 0x6b:
		return writesReg
	case op == 0x80, op == 0x81, op == 0x83:
		if in.modrm>>3&7 == 7 {
			return writesNothing
		}
		return writesRM
	case op == 0xf6, op == 0xf7:
		switch in.modrm >> 3 & 7 {
		case 0, 1:
			return writesNothing
		case 2, 3:
			return writesRM
		}
	case op == 0xfe, op == 0xff:
		if in.modrm>>3&7 < 2 {
			return writesRM
		}
	case op&0xf8 == 0x58, op&0xf8 == 0xb0, op&0xf8 == 0xb8:
		return writesLow
	}
	return writesOther
}

// keepsNumber tells whether eax surely keeps its value when execution goes on after the instruction. Without REX, the
// fifth register of a byte operand is ah.
func (in *instruction) keepsNumber() bool {
	isA := func(n byte, extended bool) bool { return !extended && (n == 0 || in.rex == 0 && n == 4) }
	switch in.writes() {
	case writesNothing:
		return true
	case writesRM:
		return in.modrm>>6 != 3 || !isA(in.modrm&7, in.rex&1 != 0)
	case writesReg:
		return !isA(in.modrm>>3&7, in.rex&4 != 0)
	case writesLow:
		return !isA(in.opcode&7, in.rex&1 != 0)
	default:
		return false
	}
}

// entry is an instruction that enters the kernel.
type entry struct {
	at int // offset in the function
	// number is the system call's, if known.
	number int64
	known  bool
}

// sweepX86 decodes a function and returns its instructions that enter the kernel. ok tells whether all of it decoded as
// instructions.
func sweepX86(b []byte) (entries []entry, ok bool) {
	var number int64
	var known, pushed, switches bool
	var pushedNumber int64
	set := 0 // offset from which the number is known
	var jumps []int64
	sets := map[int]int{} // by index of the entry
	for at := 0; at < len(b); {
		in := decodeX86(b[at:])
		if in.size == 0 {
			return entries, false
		}
		end := at + in.size
		if rel, is := in.target(); is {
			jumps = append(jumps, int64(end)+rel)
		}
		switches = switches || in.indirect()
		if in.entersX86() {
			native := in.opcode == 0x05 // the others use the numbers of 32-bit calls
			sets[len(entries)] = set
			entries = append(entries, entry{at, number, known && native})
			known = false
		} else if n, is := in.setsNumber(); is {
			number, known, set = n, true, end
		} else if pushed && in.space == 0 && in.opcode == 0x58 && in.rex&1 == 0 {
			number, known, set = pushedNumber, true, end
		} else {
			known = known && in.keepsNumber()
		}
		pushed = in.space == 0 && (in.opcode == 0x6a || in.opcode == 0x68)
		pushedNumber = in.immediate
		at = end
	}
	for i := range entries {
		e := &entries[i]
		if !e.known {
			continue
		}
		e.known = !switches
		for _, to := range jumps {
			e.known = e.known && (to < int64(sets[i]) || to > int64(e.at))
		}
		e.number = int64(uint32(e.number)) // the kernel reads eax
	}
	return entries, true
}
