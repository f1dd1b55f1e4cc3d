package scan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// errTooLarge reports more data than the scanner examines.
var errTooLarge = errors.New("too large")

// maxSites bounds the sites that are listed; all of them are counted.
const maxSites = 32

// Site is a place where code outside of libc enters the kernel.
type Site struct {
	// Offset is the instruction's place in the file, Address that in the loaded image.
	Offset  uint64 `json:"offset"`
	Address uint64 `json:"address"`
	// Symbol is the function that contains it, if the file names one.
	Symbol string `json:"symbol,omitempty"`
	// Number is the number of the call, and Call its name; nil and empty if the number is not a constant.
	Number *int64 `json:"number,omitempty"`
	Call   string `json:"call,omitempty"`
}

// Object is what was found in one file.
type Object struct {
	Path string `json:"path"`
	// Entries counts the instructions that enter the kernel, and Counted those of them that may touch a socket. Sites
	// lists the first of the latter.
	Entries int    `json:"entries"`
	Counted int    `json:"counted"`
	Sites   []Site `json:"sites,omitempty"`
	// Reasons are why this file keeps connections native.
	Reasons []Reason `json:"reasons,omitempty"`
}

// chunk is how many bytes are searched at a time.
const chunk = 1 << 20

// search is the state of the search of one file.
type search struct {
	im       *image
	object   *Object
	calls    map[int64]string
	unwound  *unwound
	symbols  []function
	asked    bool // symbols have been read
	function function
	swept    []entry // entries of function
	whole    bool    // all of function decoded as instructions
	budget   uint64  // bytes that may still be decoded
}

// examine searches the image for instructions that enter the kernel.
func (im *image) examine(o *Object) error {
	ranges, err := im.code()
	if err != nil {
		return err
	}
	s := &search{im: im, object: o, calls: numbers(im.arch), unwound: im.unwound()}
	for _, c := range ranges {
		s.budget += 4 * c.size
	}
	s.budget += 4 * maxFunction // each function is decoded once, but tables may overlap
	for _, c := range ranges {
		if err := s.searchRange(c); err != nil {
			return err
		}
	}
	return nil
}

// searchRange finds the bytes of such instructions in a range, and looks at each place.
func (s *search) searchRange(c codeRange) error {
	const overlap = 3
	buf := make([]byte, min(chunk+overlap, c.size))
	for at := uint64(0); at < c.size; at += chunk {
		b := buf[:min(uint64(len(buf)), c.size-at)]
		if err := s.im.work.spend(uint64(len(b))); err != nil {
			return err
		}
		if n, err := s.im.r.ReadAt(b, int64(c.offset+at)); n < len(b) {
			return fmt.Errorf("read %d bytes at %d: %w", len(b), c.offset+at, err)
		}
		var err error
		look := func(i int) bool {
			if i >= chunk { // the next chunk has it as well
				return true
			}
			err = s.look(c, at+uint64(i))
			return err == nil
		}
		if s.im.arch == ARM64 {
			eachARM64(b, int(-(c.address+at)&3), look)
		} else {
			eachX86(b, look)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachX86 calls look for each place with the bytes of SYSCALL, SYSENTER or INT 80, until it returns false.
func eachX86(b []byte, look func(int) bool) {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case 0x05, 0x34:
			if b[i-1] == 0x0f && !look(i-1) {
				return
			}
		case 0x80:
			if b[i-1] == 0xcd && !look(i-1) {
				return
			}
		}
	}
}

// eachARM64 calls look for each SVC, until it returns false.
func eachARM64(b []byte, first int, look func(int) bool) {
	for i := first; i+4 <= len(b); i += 4 {
		if word(binary.LittleEndian.Uint32(b[i:])).enters() && !look(i) {
			return
		}
	}
}

// look decides whether one place of a range is an instruction, and adds it if so.
func (s *search) look(c codeRange, at uint64) error {
	address := c.address + at
	f, found := s.around(address)
	// Stay within the code that the file holds.
	f.from, f.to = max(f.from, c.address), min(f.to, c.address+c.size)
	found = found && f.to-f.from <= maxFunction
	var e entry
	var real bool
	within := found
	if found {
		if err := s.sweep(c, f); err != nil {
			return err
		}
		at := int(address - f.from)
		for _, x := range s.swept {
			if x.at == at {
				e, real = x, true
			}
		}
		found = real || s.whole
	}
	if !found {
		var err error
		if real, err = s.likely(c, at, within); err != nil {
			return err
		}
	}
	if real {
		s.add(c.offset+at, address, e)
	}
	return nil
}

// around finds the function that contains an address, by the unwind table or else by the symbols.
func (s *search) around(address uint64) (function, bool) {
	if f, ok := s.unwound.around(address); ok {
		return f, true
	}
	return symbolAround(s.named(), address)
}

// named returns the functions that have names.
func (s *search) named() []function {
	if !s.asked {
		s.symbols, s.asked = s.im.symbols(), true
	}
	return s.symbols
}

// sweep decodes a function, unless it was the last one decoded.
func (s *search) sweep(c codeRange, f function) error {
	if s.function.from == f.from && s.function.to == f.to && f.to > f.from {
		return nil
	}
	b, err := s.decodable(c.offset+f.from-c.address, f.to-f.from)
	if err != nil {
		return err
	}
	s.function, s.whole = f, true
	if s.im.arch == ARM64 {
		s.swept = sweepARM64(b)
	} else {
		s.swept, s.whole = sweepX86(b)
	}
	return nil
}

// decodable reads bytes to be decoded, and charges them to the budget.
func (s *search) decodable(offset, size uint64) ([]byte, error) {
	if size > s.budget {
		return nil, fmt.Errorf("%w: its functions overlap", errMalformed)
	}
	s.budget -= size
	return s.im.read(offset, size)
}

// likely decides about a place in no function that can be decoded: in assembly without unwind tables, or in a table
// among the code, as in libcrypto. It decodes from several places before it; such sequences soon fall into step. If
// fewer of them reach the place than miss it, it is not an instruction. If other code of the file has unwind tables, a
// number must also be set in a straight line before it.
func (s *search) likely(c codeRange, at uint64, within bool) (bool, error) {
	if s.im.arch == ARM64 {
		return true, nil
	}
	const before, places = 64, 16
	from := at - min(at, before)
	b, err := s.decodable(c.offset+from, min(c.size, at+longest)-from)
	if err != nil {
		return false, err
	}
	place := int(at - from)
	hit, missed, numbered := 0, 0, false
	for i := 0; i < places && i <= place; i++ {
		p, number := i, false
		for p < place {
			in := decodeX86(b[p:])
			if in.size == 0 {
				break
			}
			number = in.movesToA() || number && in.keepsNumber()
			p += in.size
		}
		switch {
		case p == place:
			hit++
			numbered = numbered || number
		case p > place:
			missed++
		}
	}
	if !within && len(s.unwound.table) > 0 {
		return hit > missed && numbered, nil
	}
	return hit >= missed, nil
}

// add records an instruction that enters the kernel.
func (s *search) add(offset, address uint64, e entry) {
	o := s.object
	o.Entries++
	name, counts := s.calls[e.number]
	if e.known && !counts {
		return
	}
	site := Site{Offset: offset, Address: address}
	reason := RawCalls
	if e.known {
		site.Number, site.Call = &e.number, name
		if isIOUring(name) {
			reason = IOUring
		}
	}
	o.Counted++
	o.Reasons = with(o.Reasons, reason)
	if len(o.Sites) >= maxSites {
		return
	}
	if f, ok := symbolAround(s.named(), address); ok {
		site.Symbol = f.name()
	}
	o.Sites = append(o.Sites, site)
}

// with appends the reasons that list does not have.
func with(list []Reason, more ...Reason) []Reason {
	for _, r := range more {
		known := false
		for _, have := range list {
			known = known || have == r
		}
		if !known {
			list = append(list, r)
		}
	}
	return list
}

// object is what the scanner caches about a file.
type object struct {
	arch           Arch
	interpreter    string
	needed         []string
	rpath, runpath string
	found          Object // its Path is empty
}

// readObject examines a file, within a budget. In libc it does not search for instructions.
func readObject(r io.ReaderAt, size int64, libc bool, work *budget) *object {
	im, err := readImage(r, size, work)
	return objectOf(im, err, libc)
}

// objectOf examines an image, unless reading it has failed.
func objectOf(im *image, err error, libc bool) *object {
	ob := &object{}
	if err == nil {
		ob.arch, ob.interpreter, ob.needed, ob.rpath, ob.runpath = im.arch, im.interpreter, im.needed, im.rpath, im.runpath
		switch {
		case im.arch == "":
			ob.found.Reasons = []Reason{OtherArch}
		case libc:
		case im.hasGo:
			ob.found.Reasons = []Reason{GoRuntime} // its system calls are many, and known
		default:
			err = im.examine(&ob.found)
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, errNotELF):
		ob.found.Reasons = with(ob.found.Reasons, NotELF)
	case errors.Is(err, errMalformed):
		ob.found.Reasons = with(ob.found.Reasons, Malformed)
	default: // a file system error, or too large
		ob.found.Reasons = with(ob.found.Reasons, Unreadable)
	}
	return ob
}
