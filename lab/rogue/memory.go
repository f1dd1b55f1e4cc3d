package rogue

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory is a second mapping of everything that this process shares with others through the shm device. Its holder can
// write what the device never would.
type Memory struct {
	maps [][]byte
}

// SharedMemory maps it. It needs permission to read map_files.
func SharedMemory() (*Memory, error) {
	entries, err := os.ReadDir("/proc/self/map_files")
	if err != nil {
		return nil, err
	}
	m := &Memory{}
	seen := map[uint64]bool{}
	for _, e := range entries {
		name := filepath.Join("/proc/self/map_files", e.Name())
		target, err := os.Readlink(name)
		if err != nil || !strings.Contains(target, "memfd:smcgw-shm") {
			continue
		}
		if err := m.add(name, seen); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Memory) add(name string, seen map[uint64]bool) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open shared memory: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	if seen[st.Ino] {
		return nil
	}
	seen[st.Ino] = true
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map shared memory: %w", err)
	}
	m.maps = append(m.maps, b)
	return nil
}

// Parts returns the number of shared files.
func (m *Memory) Parts() int { return len(m.maps) }

// Spoil overwrites n words in each shared file: words that are not zero, and so in use, or their neighbours. It returns
// how many words it has overwritten.
func (m *Memory) Spoil(rng *rand.Rand, n int) (spoiled int) {
	for _, b := range m.maps {
		used := inUse(b)
		for range n {
			if len(used) == 0 {
				break
			}
			at := used[rng.IntN(len(used))] + 8*rng.IntN(4)
			if at+8 > len(b) {
				continue
			}
			m.write(rng, b[at:at+8])
			spoiled++
		}
	}
	return spoiled
}

// Offsets of the first vector area in a shared file, and of the ready bits of queue pairs in it (verbs/shm/layout.go).
const (
	areaAt    = 4096
	summaryAt = areaAt + 256
	summaries = 16 * 8
	bitmapAt  = areaAt + 4096
	bitmap    = 1024 * 8
)

// MarkAll marks every queue pair as having work, which makes the loop that is rung look at all of them.
func (m *Memory) MarkAll() {
	for _, b := range m.maps {
		for _, part := range [][]byte{b[bitmapAt : bitmapAt+bitmap], b[summaryAt : summaryAt+summaries]} {
			for i := range part {
				part[i] = 0xff
			}
		}
	}
}

// inUse returns the offsets of words that are not zero, without touching holes. In a file, SEEK_DATA would skip pages
// that were never written; for a mapping there is nothing like it, so pages that are not resident are skipped.
func inUse(b []byte) (at []int) {
	page := os.Getpagesize()
	resident := make([]byte, (len(b)+page-1)/page)
	if err := mincore(b, resident); err != nil {
		return nil
	}
	for p, r := range resident {
		if r&1 == 0 {
			continue
		}
		for i := p * page; i+8 <= min(len(b), (p+1)*page); i += 8 {
			if [8]byte(b[i:i+8]) != [8]byte{} {
				at = append(at, i)
			}
		}
	}
	return at
}

func (m *Memory) write(rng *rand.Rand, b []byte) {
	switch rng.IntN(5) {
	case 0:
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
	case 1:
		for i := range b {
			b[i] = 0xff
		}
	case 2:
		clear(b)
	case 3:
		b[rng.IntN(8)] ^= 1 << rng.IntN(8)
	default:
		b[0]++
	}
}

// Close unmaps everything.
func (m *Memory) Close() {
	for _, b := range m.maps {
		_ = unix.Munmap(b)
	}
	m.maps = nil
}
