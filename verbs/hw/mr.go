package hw

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// mr is a memory region. AllocMR's memory is outside of Go's heap; RegMR's may be in it and is pinned.
type mr struct {
	pd         *pd
	h          ibv.MR
	buf        []byte
	lkey, rkey uint32
	own        bool
	pin        runtime.Pinner
	closed     atomic.Bool
}

var _ verbs.MR = (*mr)(nil)

// deviceAccess is the set of rights passed to the library. It does not include relaxed ordering: what a peer wrote must
// be visible before the immediate that announces it.
const deviceAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func (p *pd) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	if err := checkMR(len(buf), access); err != nil {
		return nil, err
	}
	m := &mr{pd: p, buf: buf}
	m.pin.Pin(&buf[0])
	if err := m.register(access); err != nil {
		m.pin.Unpin()
		return nil, err
	}
	return m, nil
}

func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if err := checkMR(size, access); err != nil {
		return nil, err
	}
	if uint64(size) > p.dev.attr.MaxMRSize {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, verbs.ErrNoMemory)
	}
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w: %w", size, verbs.ErrNoMemory, err)
	}
	m := &mr{pd: p, buf: buf, own: true}
	if err := m.register(access); err != nil {
		_ = unix.Munmap(buf)
		return nil, err
	}
	return m, nil
}

func checkMR(size int, access verbs.Access) error {
	switch {
	case size <= 0 || !access.ValidMR():
		return fmt.Errorf("register %d bytes with access %#x: %w", size, uint32(access), verbs.ErrInvalid)
	case access&^deviceAccess != 0:
		return fmt.Errorf("access %#x: %w", uint32(access), verbs.ErrNotSupported)
	}
	return nil
}

func (m *mr) register(access verbs.Access) (err error) {
	if err = m.pd.hold(); err != nil {
		return err
	}
	if m.h, m.lkey, m.rkey, err = m.pd.dev.ctx.RegMR(m.pd.h, m.buf, access); err != nil {
		m.pd.users.Release()
		return failure(fmt.Sprintf("register %d bytes", len(m.buf)), err)
	}
	m.pd.dev.use.mrs.Add(1)
	return nil
}

func (m *mr) Bytes() []byte { return m.buf }

func (m *mr) LKey() uint32 { return m.lkey }

func (m *mr) RKey() uint32 { return m.rkey }

// Close implements verbs.MR. Memory that the adapter does not release stays mapped, because the adapter may still write
// to it.
func (m *mr) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	if err := m.pd.dev.ended("deregister memory", m.pd.dev.ctx.DeregMR(m.h)); err != nil {
		m.keep()
		return err
	}
	m.pin.Unpin()
	var err error
	if m.own {
		err = unix.Munmap(m.buf)
	}
	m.pd.dev.use.mrs.Add(-1)
	m.pd.users.Release()
	return err
}

// keep prevents the region from ever being collected: collecting a pinned object would crash the process.
func (m *mr) keep() { runtime.SetFinalizer(m, (*mr).keep) }
