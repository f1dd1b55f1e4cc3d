package scan

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Bounds on what is read of a file.
const (
	maxSegments = 1 << 10
	maxSections = 1 << 14
	maxTable    = 64 << 20 // bytes of a table: functions, symbols, strings
	maxCode     = 1 << 30  // bytes that are searched
	maxFunction = 16 << 20
	maxText     = 4096 // bytes of a name
	maxNeeded   = 1 << 10
	maxNames    = 64 << 10 // bytes of the names of needed libraries
	// maxSectionName is longer than any name of a section that matters here.
	maxSectionName = 32
)

// maxWork and tableWork bound the work of one examination: the bytes that may be searched, and how many of those each
// byte counts for that is read as a table, or to be decoded.
const (
	maxWork   = 8 << 30
	tableWork = 16
)

// budget is the work that is left of one examination, of one or more files.
type budget struct{ left uint64 }

func newBudget() *budget { return &budget{maxWork} }

// spend takes from the budget. If there is too little, it takes all: what is found from then on is not complete.
func (b *budget) spend(n uint64) error {
	if n > b.left {
		b.left = 0
		return fmt.Errorf("%w: more than can be examined at once", errTooLarge)
	}
	b.left -= n
	return nil
}

var (
	errNotELF    = errors.New("no ELF file of 64 bits and little endian")
	errMalformed = errors.New("malformed ELF file")
)

// segment is a program header.
type segment struct {
	kind                       elf.ProgType
	flags                      elf.ProgFlag
	offset, address, size, mem uint64
}

// section is a section header.
type section struct {
	name                  string
	kind                  elf.SectionType
	flags                 elf.SectionFlag
	offset, address, size uint64
	link                  uint32
	nameAt                uint32
}

// image is the part of an ELF file that loader and scan need.
type image struct {
	r        io.ReaderAt
	size     int64
	work     *budget
	loaded   bool // r is memory, with neither sections nor a dynamic section as in the file
	arch     Arch
	machine  elf.Machine
	segments []segment
	sections []section // nil if the table is missing or inconsistent

	interpreter    string
	needed         []string
	rpath, runpath string
	hasGo          bool
}

// readImage reads the headers of a file.
func readImage(r io.ReaderAt, size int64, work *budget) (*image, error) {
	im := &image{r: r, size: size, work: work}
	return im, im.readHeaders()
}

func (im *image) readHeaders() error {
	head, err := im.read(0, 64)
	if err != nil {
		return errNotELF
	}
	if string(head[:4]) != elf.ELFMAG || elf.Class(head[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return errNotELF
	}
	le := binary.LittleEndian
	im.machine = elf.Machine(le.Uint16(head[18:]))
	im.arch, _ = archOf(im.machine)
	if kind := elf.Type(le.Uint16(head[16:])); kind != elf.ET_EXEC && kind != elf.ET_DYN {
		return fmt.Errorf("%w: %v, no program and no library", errNotELF, kind)
	}
	count, each := uint64(le.Uint16(head[56:])), uint64(le.Uint16(head[54:]))
	if count == 0 || count > maxSegments || each != 56 {
		return fmt.Errorf("%w: %d program headers of %d bytes", errMalformed, count, each)
	}
	table, err := im.read(le.Uint64(head[32:]), count*each)
	if err != nil {
		return fmt.Errorf("program headers: %w", err)
	}
	for b := table; len(b) > 0; b = b[each:] {
		im.segments = append(im.segments, segment{
			kind: elf.ProgType(le.Uint32(b)), flags: elf.ProgFlag(le.Uint32(b[4:])),
			offset: le.Uint64(b[8:]), address: le.Uint64(b[16:]), size: le.Uint64(b[32:]), mem: le.Uint64(b[40:]),
		})
	}
	if !im.loaded {
		im.readSections(le.Uint64(head[40:]), uint64(le.Uint16(head[60:])), uint64(le.Uint16(head[58:])), le.Uint16(head[62:]))
	}
	return im.readSegments()
}

// read reads a piece of the file, all of it or none.
func (im *image) read(offset, size uint64) ([]byte, error) {
	if size > uint64(im.size) || offset > uint64(im.size)-size {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", errMalformed, size, offset, im.size)
	}
	if size > maxTable {
		return nil, fmt.Errorf("%w: %d bytes at %d", errTooLarge, size, offset)
	}
	if err := im.work.spend(tableWork * size); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if n, err := im.r.ReadAt(b, int64(offset)); n < len(b) {
		return nil, fmt.Errorf("read %d bytes at %d: %w", size, offset, err)
	}
	return b, nil
}

// readSections reads the section headers, which the loader does not need: it ignores a table that is inconsistent.
func (im *image) readSections(offset, count, each uint64, names uint16) {
	if count == 0 || count > maxSections || each != 64 || uint64(names) >= count {
		return
	}
	table, err := im.read(offset, count*each)
	if err != nil {
		return
	}
	le := binary.LittleEndian
	var list []section
	for b := table; len(b) > 0; b = b[each:] {
		list = append(list, section{
			nameAt: le.Uint32(b), kind: elf.SectionType(le.Uint32(b[4:])), flags: elf.SectionFlag(le.Uint64(b[8:])),
			address: le.Uint64(b[16:]), offset: le.Uint64(b[24:]), size: le.Uint64(b[32:]), link: le.Uint32(b[40:]),
		})
	}
	if s := list[names]; s.size <= maxTable {
		text, err := im.read(s.offset, s.size)
		if err != nil {
			return
		}
		for i := range list {
			list[i].name = textAt(text, uint64(list[i].nameAt), maxSectionName)
		}
	}
	im.sections = list
}

// readSegments reads what the segments point to.
func (im *image) readSegments() error {
	dynamic := false
	for _, s := range im.segments {
		switch s.kind {
		case elf.PT_INTERP:
			if s.size > maxText {
				return fmt.Errorf("%w: a loader's name of %d bytes", errMalformed, s.size)
			}
			b, err := im.read(s.offset, s.size)
			if err != nil {
				return fmt.Errorf("name of the loader: %w", err)
			}
			im.interpreter = textAt(b, 0, maxText)
		case elf.PT_DYNAMIC:
			if dynamic { // loaders differ in which they take
				return fmt.Errorf("%w: more than one dynamic section", errMalformed)
			}
			dynamic = true
			if im.loaded { // the loader has written to it
				continue
			}
			if err := im.readDynamic(s); err != nil {
				return fmt.Errorf("dynamic section: %w", err)
			}
		case elf.PT_NOTE:
			if s.size <= maxText {
				if b, err := im.read(s.offset, s.size); err == nil {
					im.hasGo = im.hasGo || hasGoNote(b)
				}
			}
		default: // segments that do not matter here
		}
	}
	for _, s := range im.sections {
		im.hasGo = im.hasGo || s.name == ".go.buildinfo" || s.name == ".note.go.buildid" || s.name == ".gopclntab"
	}
	return nil
}

// hasGoNote tells whether the notes contain the build ID of Go's linker, type 4.
func hasGoNote(b []byte) bool {
	le := binary.LittleEndian
	for len(b) >= 12 {
		name, desc, kind := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		b = b[12:]
		whole := (name+3)&^3 + (desc+3)&^3
		if whole > uint64(len(b)) {
			return false
		}
		if kind == 4 && string(b[:name]) == "Go\x00\x00" {
			return true
		}
		b = b[whole:]
	}
	return false
}

func (im *image) readDynamic(s segment) error {
	if s.size > maxTable {
		return fmt.Errorf("%w: %d bytes", errMalformed, s.size)
	}
	b, err := im.read(s.offset, s.size)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	values := map[elf.DynTag][]uint64{}
	for ; len(b) >= 16; b = b[16:] {
		tag := elf.DynTag(le.Uint64(b))
		if tag == elf.DT_NULL {
			break
		}
		switch tag {
		case elf.DT_NEEDED, elf.DT_RPATH, elf.DT_RUNPATH, elf.DT_STRTAB, elf.DT_STRSZ:
			values[tag] = append(values[tag], le.Uint64(b[8:]))
		default: // names no library
		}
	}
	if len(values[elf.DT_STRTAB]) == 0 || len(values[elf.DT_STRSZ]) == 0 {
		return nil // names nothing
	}
	size := values[elf.DT_STRSZ][0]
	offset, ok := im.offset(values[elf.DT_STRTAB][0], size)
	if !ok || size > maxTable || len(values[elf.DT_NEEDED]) > maxNeeded {
		return fmt.Errorf("%w: its strings are not in the file", errMalformed)
	}
	text, err := im.read(offset, size)
	if err != nil {
		return err
	}
	names := 0
	for _, at := range values[elf.DT_NEEDED] {
		name := textAt(text, at, maxText)
		if names += len(name) + 1; names > maxNames {
			return fmt.Errorf("%w: names of libraries of more than %d bytes", errMalformed, maxNames)
		}
		im.needed = append(im.needed, name)
	}
	for _, at := range values[elf.DT_RPATH] {
		im.rpath = textAt(text, at, maxText)
	}
	for _, at := range values[elf.DT_RUNPATH] {
		im.runpath = textAt(text, at, maxText)
	}
	return nil
}

// textAt returns the NUL-terminated text at a place in b, cut off after most bytes.
func textAt(b []byte, at, most uint64) string {
	if at >= uint64(len(b)) {
		return ""
	}
	b = b[at:min(uint64(len(b)), at+most)]
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// offset returns where an address of the loaded image is in the file.
func (im *image) offset(address, size uint64) (uint64, bool) {
	for _, s := range im.segments {
		if s.kind == elf.PT_LOAD && address >= s.address && size <= s.size && address-s.address <= s.size-size {
			return s.offset + address - s.address, true
		}
	}
	return 0, false
}

// codeRange is a range of executable memory with content from the file.
type codeRange struct{ offset, address, size uint64 }

// code returns the executable ranges: for each segment its sections of instructions, or all of it if it has none. Some
// linkers put constants beside instructions.
func (im *image) code() ([]codeRange, error) {
	var list []codeRange
	var sum uint64
	for _, s := range im.segments {
		if s.kind != elf.PT_LOAD || s.flags&elf.PF_X == 0 || s.size == 0 {
			continue
		}
		if s.size > uint64(im.size) || s.offset > uint64(im.size)-s.size || s.address+s.size < s.address {
			return nil, fmt.Errorf("%w: a segment of %d bytes at %d of %d", errMalformed, s.size, s.offset, im.size)
		}
		var own []codeRange
		for _, t := range im.sections {
			const want = elf.SHF_ALLOC | elf.SHF_EXECINSTR
			if t.flags&want == want && t.kind == elf.SHT_PROGBITS && t.size > 0 && t.offset >= s.offset && t.size <= s.size && t.offset-s.offset <= s.size-t.size {
				own = append(own, codeRange{t.offset, s.address + t.offset - s.offset, t.size})
			}
		}
		if own == nil {
			own = []codeRange{{s.offset, s.address, s.size}}
		}
		for _, c := range own {
			if c.size > maxCode-sum {
				return nil, fmt.Errorf("%w: more than %d bytes of code", errTooLarge, maxCode)
			}
			sum += c.size
		}
		list = append(list, own...)
	}
	return list, nil
}

// function is an address range of a function. names holds its name, if it has one, at a place.
type function struct {
	from, to uint64
	names    []byte
	at       uint32
}

func (f *function) name() string { return textAt(f.names, uint64(f.at), maxText) }

// unwound finds functions by .eh_frame_hdr, the unwinder's binary search table (Linux Standard Base Core 5.0, 10.6).
type unwound struct {
	im    *image
	table []struct{ from, entry uint64 }
}

func (im *image) unwound() *unwound {
	u := &unwound{im: im}
	for _, s := range im.segments {
		if s.kind != elf.PT_GNU_EH_FRAME || s.size < 12 || s.size > maxTable || u.table != nil { // there is one
			continue
		}
		b, err := im.read(s.offset, s.size)
		const four, count, sorted = 0x1b, 0x03, 0x3b // DW_EH_PE: pcrel|sdata4, udata4, datarel|sdata4
		if err != nil || b[0] != 1 || b[1] != four || b[2] != count || b[3] != sorted {
			continue
		}
		le := binary.LittleEndian
		n := min(uint64(le.Uint32(b[8:])), uint64(len(b)-12)/8)
		at := func(i int) uint64 { return s.address + uint64(int64(int32(le.Uint32(b[i:])))) }
		for i := 12; n > 0; n, i = n-1, i+8 {
			u.table = append(u.table, struct{ from, entry uint64 }{at(i), at(i + 4)})
		}
	}
	slices.SortFunc(u.table, func(a, b struct{ from, entry uint64 }) int { return cmp.Compare(a.from, b.from) })
	return u
}

// around returns the function that contains an address.
func (u *unwound) around(address uint64) (function, bool) {
	i, _ := slices.BinarySearchFunc(u.table, address, func(e struct{ from, entry uint64 }, a uint64) int {
		if e.from <= a {
			return -1
		}
		return 1
	})
	if i == 0 {
		return function{}, false
	}
	e := u.table[i-1]
	// An FDE: length, pointer to its CIE, then begin and size of the function, as compilers encode them.
	offset, ok := u.im.offset(e.entry, 16)
	if !ok {
		return function{}, false
	}
	b, err := u.im.read(offset, 16)
	if err != nil {
		return function{}, false
	}
	le := binary.LittleEndian
	from := e.entry + 8 + uint64(int64(int32(le.Uint32(b[8:]))))
	f := function{from: e.from, to: e.from + uint64(le.Uint32(b[12:]))}
	return f, from == e.from && address >= f.from && address < f.to
}

// symbols returns the functions that the file names, sorted by address.
func (im *image) symbols() []function {
	var list []function
	for _, s := range im.sections {
		if s.kind != elf.SHT_SYMTAB && s.kind != elf.SHT_DYNSYM || s.size > maxTable || uint64(s.link) >= uint64(len(im.sections)) {
			continue
		}
		names := im.sections[s.link]
		if names.size > maxTable {
			continue
		}
		table, err := im.read(s.offset, s.size)
		if err != nil {
			continue
		}
		text, err := im.read(names.offset, names.size)
		if err != nil {
			continue
		}
		le := binary.LittleEndian
		for b := table; len(b) >= 24; b = b[24:] {
			from, size := le.Uint64(b[8:]), le.Uint64(b[16:])
			if elf.SymType(b[4]&0xf) == elf.STT_FUNC && size > 0 && from+size > from {
				list = append(list, function{from, from + size, text, le.Uint32(b)})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b function) int { return cmp.Compare(a.from, b.from) })
	return list
}

// symbolAround returns the function of a sorted list that contains an address.
func symbolAround(list []function, address uint64) (function, bool) {
	i, _ := slices.BinarySearchFunc(list, address, func(f function, a uint64) int {
		if f.from <= a {
			return -1
		}
		return 1
	})
	for j := i - 1; j >= 0 && j >= i-16; j-- {
		if address < list[j].to {
			return list[j], true
		}
	}
	return function{}, false
}
