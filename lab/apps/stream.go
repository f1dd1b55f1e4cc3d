package apps

import "encoding/binary"

// stream is a reproducible sequence of bytes: the same seed yields the same bytes at the same offsets, so a receiver
// can check every byte and name the first wrong one. (A checksum could only tell that there is one.)
type stream struct{ seed uint64 }

// word returns the output of the splitmix64 generator at index i.
func (s stream) word(i uint64) uint64 {
	z := s.seed + (i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s stream) at(off int64) byte {
	return byte(s.word(uint64(off)/8) >> (8 * (uint64(off) % 8)))
}

// fill writes the bytes from offset off into p.
func (s stream) fill(p []byte, off int64) {
	for len(p) > 0 && off%8 != 0 {
		p[0] = s.at(off)
		p, off = p[1:], off+1
	}
	for ; len(p) >= 8; p, off = p[8:], off+8 {
		binary.LittleEndian.PutUint64(p, s.word(uint64(off)/8))
	}
	for i := range p {
		p[i] = s.at(off + int64(i))
	}
}

// check returns the index of the first byte in p that differs from the stream at offset off, or -1.
func (s stream) check(p []byte, off int64) int {
	i := 0
	for ; i < len(p) && (off+int64(i))%8 != 0; i++ {
		if p[i] != s.at(off+int64(i)) {
			return i
		}
	}
	for ; len(p)-i >= 8; i += 8 {
		if binary.LittleEndian.Uint64(p[i:]) != s.word(uint64(off+int64(i))/8) {
			break
		}
	}
	for ; i < len(p); i++ {
		if p[i] != s.at(off+int64(i)) {
			return i
		}
	}
	return -1
}
