package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// newPeer makes a pending peer with this side's memory and doorbells. Peers that are gone but whose memory is not
// returned yet are bounded like live ones.
func (d *Device) newPeer(name string, key [16]byte) (*Peer, error) {
	if n := d.reclaim.Busy(); n >= d.cfg.MaxPeers {
		return nil, fmt.Errorf("memory of %d peers is being returned: %w", n, verbs.ErrNoMemory)
	}
	p := &Peer{
		dev: d, id: d.peerIDs.Add(1), name: name, key: key, done: make(chan struct{}), memfd: -1, pidfd: -1, refs: 1,
		ownLayout: newLayout(len(d.vectors)), warm: map[uint8][]uint64{}, arena: newBuddy(d.cfg.PeerQuota), reclaim: d.reclaim.Queue(),
	}
	p.pd = &pd{peer: p}
	if err := p.makeOwn(); err != nil {
		p.unref()
		return nil, err
	}
	return p, nil
}

func (p *Peer) makeOwn() (err error) {
	size := p.ownLayout.arena + p.arena.size
	if p.memfd, err = newMemfd(size); err != nil {
		return err
	}
	if p.own, err = newMapping(p.memfd, size); err != nil {
		return err
	}
	for range p.dev.vectors {
		fd, err := newEventfd()
		if err != nil {
			return err
		}
		p.bells = append(p.bells, fd)
	}
	p.epochWord = p.own.word(offEpoch)
	p.acks = p.own.words(offAcks, maxVectors)
	return nil
}

// take maps the memory that a peer announced. It takes ownership of the fds, even on an error.
func (d *Device) take(m message, fds []int) (r remote, err error) {
	memfd := fds[0]
	defer closeFD(&memfd)
	for _, fd := range fds[1:] {
		r.targets = append(r.targets, target{bell: fd})
	}
	r.gateway, r.remLayout = m.gateway, newLayout(int(m.vectors))
	if err := r.check(m, memfd); err != nil {
		r.closeRemote()
		return remote{}, err
	}
	if r.rem, err = newMapping(memfd, m.size); err != nil {
		r.closeRemote()
		return remote{}, err
	}
	r.bind()
	return r, nil
}

func (r *remote) check(m message, memfd int) error {
	for i := range r.targets {
		if err := checkEventfd(r.targets[i].bell); err != nil {
			return err
		}
	}
	if m.size < r.remLayout.arena+pageSize || m.size%pageSize != 0 || m.size > maxPeerMemory {
		return fmt.Errorf("announced size %d: %w", m.size, ErrMemfd)
	}
	return checkMemfd(memfd, m.size)
}

func (r *remote) bind() {
	for i := range r.targets {
		t, area := &r.targets[i], r.remLayout.area(i)
		t.armed = r.rem.word(area + areaArmed)
		t.driven = r.rem.word(area + areaDriven)
		t.summary = r.rem.words(area+areaSummary, summaryWords)
		t.bitmap = r.rem.words(area+areaBitmap, bitmapWords)
	}
	r.remEpoch = r.rem.word(offEpoch)
	r.remAcks = r.rem.words(offAcks, maxVectors)
}

// allocLocked allocates n bytes of the arena; the result is an offset into the memfd.
func (p *Peer) allocLocked(n uint64) (uint64, error) {
	p.turnGraceLocked()
	off, ok := p.arena.alloc(n)
	if !ok {
		p.dropWarmLocked()
		off, ok = p.arena.alloc(n)
	}
	if !ok {
		return 0, fmt.Errorf("%d bytes of %d shared with %v: %w", n, p.arena.size, p, verbs.ErrNoMemory)
	}
	return p.ownLayout.arena + off, nil
}

func (p *Peer) releaseLocked(off, n uint64) { p.arena.release(off-p.ownLayout.arena, n) }

// maxWarm bounds the free queue pair blocks that are kept with their pages, per size.
const maxWarm = 64

// takeBlockLocked returns a queue pair block with a cleared header.
func (p *Peer) takeBlockLocked(log2 uint8) (uint64, error) {
	p.turnGraceLocked()
	if w := p.warm[log2]; len(w) > 0 {
		p.warm[log2] = w[:len(w)-1]
		return p.cleanBlock(w[len(w)-1]), nil
	}
	off, err := p.allocLocked(blockSize(log2))
	if err != nil {
		return 0, err
	}
	return p.cleanBlock(off), nil
}

func (p *Peer) cleanBlock(off uint64) uint64 {
	clear(p.own.span(off, blkRing))
	return off
}

func (p *Peer) giveBlockLocked(off uint64, log2 uint8) {
	if p.err != nil || len(p.warm[log2]) < maxWarm {
		p.warm[log2] = append(p.warm[log2], off)
		return
	}
	p.freeLocked(off, blockSize(log2))
}

// freeLocked returns the pages of a range to the system, and then the range to the arena, in the background: that takes
// a millisecond for 3 MiB, and no lock holder or loop waits for it.
func (p *Peer) freeLocked(off, n uint64) {
	p.refs++
	job := func() {
		punch(p.memfd, off, roundUp(n, pageSize))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.releaseLocked(off, n)
		p.unrefLocked()
	}
	if !p.reclaim.Put(job) { // the device is closed: the pages go with the mapping
		p.releaseLocked(off, n)
		p.refs--
	}
}

// dropWarmLocked frees the warm blocks. They are cleared, not punched, because the memory is needed now.
func (p *Peer) dropWarmLocked() {
	for log2, blocks := range p.warm {
		for _, off := range blocks {
			clear(p.own.span(off, blockSize(log2)))
			p.releaseLocked(off, blockSize(log2))
		}
		delete(p.warm, log2)
	}
}

func (p *Peer) warmBytesLocked() uint64 {
	n := uint64(0)
	for log2, blocks := range p.warm {
		n += uint64(len(blocks)) * orderSize(order(blockSize(log2)))
	}
	return n
}
