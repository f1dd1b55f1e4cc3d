package shm

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// Peer is another device under the same kernel that shares memory with this one. Any goroutine may call its methods.
//
//	            Offer                    Attach
//	              ▼                        ▼
//	pending ── HELLO received ──► connected ── hang-up, violation, Close ──► down
//	   └────────────────────────── Close ──────────────────────────────────► down
//
// A pending peer already has this side's memory: regions can be allocated and queue pairs brought to INIT, so that the
// first message to an unknown server can refer to them. RTR needs a connected peer.
type Peer struct {
	dev  *Device
	id   uint64 // for logs and errors; local
	name string
	key  [16]byte
	pd   *pd
	done chan struct{}
	down atomic.Bool

	own       *mapping // our memfd, which the peer writes to
	ownLayout layout
	memfd     int
	pidfd     int   // the peer's process, -1 if the kernel does not tell; set before watch
	bells     []int // eventfds by own vector, which the peer rings
	epochWord *atomic.Uint64
	acks      []atomic.Uint64 // by vector of the peer
	keys      keyTable
	reclaim   *jobQueue // returns memory to the system; bounded by the quota and newPeer

	mu      sync.Mutex // guards everything below
	err     error
	conn    *net.UnixConn // nil while pending
	refs    int           // references that keep the memory mapped: liveness, vectors, queue pairs, memory regions
	arena   *buddy
	warm    map[uint8][]uint64 // free queue pair blocks by log2(ring)
	grace   grace
	qpCount int
	ahCount int

	// Set once under mu, before any port exists; loops read it through a port.
	remote
}

// remote is what the peer has announced.
type remote struct {
	gateway   [16]byte
	rem       *mapping // the peer's memfd, which we write to
	remLayout layout
	targets   []target // by vector of the peer
	remEpoch  *atomic.Uint64
	remAcks   []atomic.Uint64 // by own vector
}

// target is a vector of the peer, where we mark queue pairs and ring.
type target struct {
	peer    *Peer
	armed   *atomic.Uint64
	driven  *atomic.Uint64
	summary []atomic.Uint64
	bitmap  []atomic.Uint64
	bell    int
}

// Name returns the rendezvous name for which Key is valid: this device's if it made the offer, else the peer's.
func (p *Peer) Name() string { return p.name }

// Key returns the key of the offer that the peer came from. It identifies the peer on both sides.
func (p *Peer) Key() [16]byte { return p.key }

// Connected reports whether a device has attached, now or before the peer went down.
func (p *Peer) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn != nil
}

// Gateway returns the gateway id of the peer, zero while it is pending.
func (p *Peer) Gateway() [16]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gateway
}

// PD returns the protection domain of everything shared with the peer.
func (p *Peer) PD() verbs.PD { return p.pd }

// Done returns a channel that is closed when the peer is down.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err returns why the peer is down, or nil.
func (p *Peer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// hungUp reports whether the peer went down by itself rather than being disconnected by us.
func (p *Peer) hungUp() bool {
	err := p.Err()
	return err != nil && !errors.Is(err, ErrViolation) && !errors.Is(err, verbs.ErrClosed)
}

// Close hangs up, or withdraws the offer. Queue pairs go to ERR with the next Progress of their vectors.
func (p *Peer) Close() error {
	p.fail(fmt.Errorf("closed by this side: %w", verbs.ErrClosed))
	return nil
}

// String identifies the peer in logs and errors.
func (p *Peer) String() string { return fmt.Sprintf("%s peer %d", p.dev.Name(), p.id) }

// fail ends the peer; the first reason is kept. It does not block; the watcher of the connection does the rest.
func (p *Peer) fail(err error) {
	p.mu.Lock()
	first, conn := p.err == nil, p.conn
	if first {
		p.err = err
	}
	p.mu.Unlock()
	p.down.Store(true)
	switch {
	case conn != nil:
		_ = conn.Close()
	case first:
		p.ended()
	}
}

// ended completes the end of a peer: the device forgets it, and loops detach it.
func (p *Peer) ended() {
	p.dev.forget(p)
	close(p.done)
	for _, v := range p.dev.vectors {
		v.peerDown(p)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnGraceLocked()
	p.unrefLocked()
}

// violation ends a peer that wrote something no honest peer writes.
func (p *Peer) violation(what string) {
	if !p.down.Load() {
		p.dev.counters.violations.Add(1)
		p.fail(fmt.Errorf("%s: %w", what, ErrViolation))
	}
}

// ErrViolation is the reason of a peer that is down because it wrote something no honest peer writes.
var ErrViolation = errors.New("protocol violation of the peer")

// watch waits for the end of the rendezvous connection, which is the end of the peer.
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
	cause := ErrHungUp
	if p.Err() == nil && p.processEnds() {
		cause = ErrDied
	}
	p.fail(fmt.Errorf("%w: rendezvous connection: %w", cause, err))
	p.ended()
	p.dev.counters.peersDown.Add(1)
	p.dev.cfg.Logger.Info("shm peer down", "peer", p.String(), "cause", p.Err().Error())
	p.dev.cfg.OnPeerDown(p)
}

// addAH changes the number of address handles; adding needs a live peer.
func (p *Peer) addAH(by int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if by > 0 && p.err != nil {
		return fmt.Errorf("%v is down: %w", p, verbs.ErrRemoteGone)
	}
	if p.ahCount+by > maxAH {
		return fmt.Errorf("%d address handles of %v: %w", p.ahCount, p, verbs.ErrNoMemory)
	}
	p.ahCount += by
	return nil
}

// refLocked keeps the memory mapped; it fails once the peer is down.
func (p *Peer) refLocked() error {
	if p.err != nil {
		return fmt.Errorf("%v is down: %w", p, verbs.ErrRemoteGone)
	}
	p.refs++
	return nil
}

// unref drops a reference. After the last one the memory is unmapped.
func (p *Peer) unref() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unrefLocked()
}

func (p *Peer) unrefLocked() {
	if p.refs--; p.refs > 0 {
		return
	}
	if !p.reclaim.Put(p.closeMemory) {
		p.closeMemory() // the device is closed
	}
}

// closeMemory unmaps and closes everything. There must be no references left.
func (p *Peer) closeMemory() {
	if p.own != nil {
		p.own.close()
	}
	closeFD(&p.memfd)
	closeFD(&p.pidfd)
	for i := range p.bells {
		closeFD(&p.bells[i])
	}
	p.closeRemote()
}

// closeRemote does the same for the peer's part.
func (r *remote) closeRemote() {
	if r.rem != nil {
		r.rem.close()
	}
	for i := range r.targets {
		closeFD(&r.targets[i].bell)
	}
}

func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}
