package mirror

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// memory is the mappings of an end's two files: own for reading, mirror for writing.
type memory struct{ own, mirror []byte }

// newMemory makes and maps both files.
func newMemory(cfg *Config) (m memory, p shared.Portion, err error) {
	p = shared.NoPortion
	defer func() {
		if err != nil {
			m.unmap()
			p.Close()
		}
	}()
	size := inprocess.EndSize(cfg.Order)
	if p.Own, err = shared.NewMemory("smcgw-end", size, head(cfg, cfg.Side), unix.F_SEAL_SEAL); err != nil {
		return m, p, err
	}
	m.own, err = unix.Mmap(p.Own.Read, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	shared.Close(&p.Own.Read)
	if err != nil {
		return m, p, fmt.Errorf("map memory of an end: %w", err)
	}
	if p.Mirror, err = shared.NewMemory("smcgw-mirror", size, head(cfg, 1-cfg.Side), 0); err != nil {
		return m, p, err
	}
	m.mirror, err = unix.Mmap(p.Mirror.Write, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return m, p, fmt.Errorf("map mirror: %w", err)
	}
	wordsOf(m.mirror).nonce = cfg.Nonces
	err = shared.Seal(p.Mirror.Write, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	shared.Close(&p.Mirror.Write)
	return m, p, err
}

// head returns the first bytes of a side's memory. The size of the ring in them never changes.
func head(cfg *Config, side uint32) []byte {
	b := make([]byte, inprocess.EndOrder+4)
	copy(b, shared.EndHead(cfg.ID, side, cfg.Order))
	binary.NativeEndian.PutUint32(b[inprocess.EndOrder:], cfg.Order)
	return b
}

// lend wraps the rings of both files for links, which send from the one and receive into the other.
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
