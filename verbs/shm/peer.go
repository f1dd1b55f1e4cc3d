package shm

import (
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// Peer is another device under the same kernel that shares memory with this
// one. Its methods may be called by any goroutine.
type Peer struct {
	dev     *Device
	gateway [16]byte
	pd      *pd
	conn    *net.UnixConn
	done    chan struct{}
	down    atomic.Bool

	own       *mapping // the memfd we own: the peer writes into it
	ownLayout layout
	memfd     int
	bells     []int // eventfd per own vector: the peer rings
	epochWord *atomic.Uint64
	acks      []atomic.Uint64 // by vector of the peer

	rem       *mapping // the memfd the peer owns: we write into it
	remLayout layout
	targets   []target // by vector of the peer
	remEpoch  *atomic.Uint64
	remAcks   []atomic.Uint64 // by own vector

	keys      keyTable
	graceBusy atomic.Bool // a grace period is under way

	mu      sync.Mutex // guards everything below
	err     error
	refs    int // reasons to stay mapped: liveness, vectors, queue pairs, memory regions
	arena   *buddy
	warm    map[uint8][]uint64 // free queue pair blocks by log2(ring)
	grace   grace
	qpCount int
}

// target is a vector of the peer: where we mark queue pairs and ring.
type target struct {
	armed   *atomic.Uint64
	driven  *atomic.Uint64
	summary []atomic.Uint64
	bitmap  []atomic.Uint64
	bell    int
}

// Gateway is the gateway id of the peer.
func (p *Peer) Gateway() [16]byte { return p.gateway }

// PD is the protection domain of everything shared with the peer.
func (p *Peer) PD() verbs.PD { return p.pd }

// Done is closed when the peer is down.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err says why the peer is down, nil while it is not.
func (p *Peer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close hangs up. Queue pairs go to ERR with the next Progress of their vectors.
func (p *Peer) Close() error {
	p.fail(fmt.Errorf("closed by this side: %w", verbs.ErrClosed))
	return nil
}

// String names the peer in logs.
func (p *Peer) String() string { return hex.EncodeToString(p.gateway[:]) }

// fail ends the peer: the first reason stays. It never blocks; the watcher
// does the rest.
func (p *Peer) fail(err error) {
	p.mu.Lock()
	if p.err == nil {
		p.err = err
	}
	p.mu.Unlock()
	p.down.Store(true)
	_ = p.conn.Close()
}

// violation ends a peer that wrote what no honest peer writes.
func (p *Peer) violation(what string) {
	if !p.down.Load() {
		p.dev.counters.violations.Add(1)
		p.fail(fmt.Errorf("protocol violation of the peer: %s", what))
	}
}

// watch lives as long as the rendezvous connection: its end is the end of the peer.
func (p *Peer) watch() {
	defer p.dev.wg.Done()
	var b [1]byte
	n, err := p.conn.Read(b[:])
	switch {
	case n > 0:
		err = fmt.Errorf("unexpected message: %w", ErrMessage)
	case err == nil:
		err = unix.ECONNRESET
	}
	p.fail(fmt.Errorf("rendezvous connection: %w", err))
	p.dev.forget(p)
	close(p.done)
	for _, v := range p.dev.vectors {
		v.peerDown(p)
	}
	p.dev.cfg.Logger.Info("shm peer down", "peer", p.String(), "cause", p.Err().Error())
	p.dev.cfg.OnPeerDown(p)
	p.unref()
}

// forget takes a dead peer out of the device.
func (d *Device) forget(p *Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counters.peersDown.Add(1)
	if d.peers[p.gateway] == p {
		delete(d.peers, p.gateway)
		d.notifyLocked()
	}
}

// ref keeps the memory mapped; it fails once the peer is down.
func (p *Peer) refLocked() error {
	if p.err != nil || p.refs == 0 {
		return fmt.Errorf("peer %v is down: %w", p, verbs.ErrRemoteGone)
	}
	p.refs++
	return nil
}

// unref unmaps the memory with the last reference.
func (p *Peer) unref() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unrefLocked()
}

func (p *Peer) unrefLocked() {
	if p.refs--; p.refs == 0 {
		p.closeMemory()
	}
}

// closeMemory unmaps and closes everything; nobody refers to it.
func (p *Peer) closeMemory() {
	for _, m := range []*mapping{p.own, p.rem} {
		if m != nil {
			m.close()
		}
	}
	closeFD(&p.memfd)
	for i := range p.bells {
		closeFD(&p.bells[i])
	}
	for i := range p.targets {
		closeFD(&p.targets[i].bell)
	}
}

func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}
