package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// Files are what an end's process is given.
type Files struct {
	Own    int // writable
	Mirror int // readable
	Bell   int // the End's, which closes it
}

// Close closes what is the caller's.
func (f *Files) Close() error { return errors.Join(unix.Close(f.Own), unix.Close(f.Mirror)) }

// memory is the two files of an end as they are mapped: own for reading, mirror for writing.
type memory struct{ own, mirror []byte }

// newMemory makes both files.
func newMemory(cfg *Config) (m memory, f Files, err error) {
	f = Files{-1, -1, -1}
	defer func() {
		if err != nil {
			m.unmap()
			_ = f.Close()
		}
	}()
	size := inprocess.EndSize(cfg.Order)
	own, err := shared.NewMemory("smcgw-end", size, head(cfg, cfg.Side), unix.F_SEAL_SEAL)
	if err != nil {
		return m, f, err
	}
	f.Own = own.Write
	m.own, err = unix.Mmap(own.Read, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	shared.Close(&own.Read, &own.Kept)
	if err != nil {
		return m, f, fmt.Errorf("map memory of an end: %w", err)
	}
	fd, err := shared.New("smcgw-mirror", size)
	if err != nil {
		return m, f, err
	}
	defer func() { _ = unix.Close(fd) }()
	if m.mirror, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return m, f, fmt.Errorf("map mirror: %w", err)
	}
	copy(m.mirror, head(cfg, 1-cfg.Side))
	wordsOf(m.mirror).nonce = cfg.Nonces
	if err = shared.Seal(fd, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err == nil {
		f.Mirror, err = shared.Reopen(fd, unix.O_RDONLY)
	}
	return m, f, err
}

// head is what the memory of a side begins with: its ring never changes.
func head(cfg *Config, side uint32) []byte {
	b := make([]byte, inprocess.EndOrder+4)
	copy(b, shared.EndHead(cfg.ID, side, cfg.Order))
	binary.NativeEndian.PutUint32(b[inprocess.EndOrder:], cfg.Order)
	return b
}

// lend is the rings of both files as what links send from and receive into.
func (m memory) lend() *carrier.Memory {
	return carrier.NewMemory(m.own[inprocess.RingAt:], m.mirror[inprocess.RingAt:], m.unmap)
}

func (m memory) unmap() {
	for _, b := range [][]byte{m.own, m.mirror} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
}
