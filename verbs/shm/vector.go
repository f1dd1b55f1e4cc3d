package shm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// vector is one completion vector, which one event loop drives.
type vector struct {
	dev   *Device
	index int
	ports atomic.Pointer[[]*port] // one per peer; copied on write, guarded by mu

	hasOrphans atomic.Bool
	ringing    ringing

	// Owned by the loop.
	again  []*qp // queue pairs to run at the next Progress
	spare  []*qp
	timers []*qp   // queue pairs whose RNR retries may run out
	dirty  []*port // ports with doorbells to ring at Flush

	spareTimers []*qp

	mu      sync.Mutex // guards everything below
	kick    int        // our own eventfd, for local wake-ups
	poller  verbs.Poller
	orphans []orphan
}

// port is a vector's side of one peer.
type port struct {
	peer    *Peer
	vec     *vector
	bell    int
	armed   *atomic.Uint64
	driven  *atomic.Uint64
	summary []atomic.Uint64
	bitmap  []atomic.Uint64
	ack     *atomic.Uint64

	// Owned by the loop.
	acked  uint64
	dirty  uint64 // vectors of the peer to ring
	listed bool   // in vector.dirty
	qps    map[uint32]*qp
	out    []datagramOut // by vector of the peer
	in     []datagramIn
}

func newVector(d *Device, index int) (*vector, error) {
	fd, err := newEventfd()
	if err != nil {
		return nil, err
	}
	v := &vector{dev: d, index: index, kick: fd}
	v.ports.Store(&[]*port{})
	return v, nil
}

// attach makes the vector serve a peer; it holds a reference until detach.
func (v *vector) attach(p *Peer) error {
	area := p.ownLayout.area(v.index)
	pt := &port{
		peer: p, vec: v, bell: p.bells[v.index], qps: map[uint32]*qp{},
		armed:   p.own.word(area + areaArmed),
		driven:  p.own.word(area + areaDriven),
		summary: p.own.words(area+areaSummary, summaryWords),
		bitmap:  p.own.words(area+areaBitmap, bitmapWords),
		ack:     &p.remAcks[v.index],
	}
	pt.bindDatagrams()
	p.mu.Lock()
	err := p.refLocked()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.poller != nil {
		if err := pt.activate(v.poller); err != nil {
			p.unref()
			return err
		}
	}
	ports := append(append([]*port{}, *v.ports.Load()...), pt)
	v.ports.Store(&ports)
	if v.poller != nil && v.kick >= 0 {
		ringBell(v.kick) // wake a sleeping loop, which is not armed for the peer yet
	}
	return nil
}

// activate connects the loop to the peer. It acknowledges the current epoch, since this vector has not used any earlier
// memory.
func (pt *port) activate(p verbs.Poller) error {
	if err := p.Add(pt.bell); err != nil {
		return fmt.Errorf("add doorbell to poller: %w", err)
	}
	pt.ack.Store(pt.peer.remEpoch.Load())
	pt.driven.Store(1)
	return nil
}

// detach stops serving a peer that is down.
func (v *vector) detach(pt *port) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := *v.ports.Load()
	ports := make([]*port, 0, len(old))
	for _, o := range old {
		if o != pt {
			ports = append(ports, o)
		}
	}
	if len(ports) == len(old) {
		return
	}
	v.ports.Store(&ports)
	if v.poller != nil {
		_ = v.poller.Remove(pt.bell)
	}
	pt.peer.unref()
}

// portOf returns the vector's side of a peer, or nil once it is detached.
func (v *vector) portOf(p *Peer) *port {
	for _, pt := range *v.ports.Load() {
		if pt.peer == p {
			return pt
		}
	}
	return nil
}

// peerDown makes the loop check its peers or, if there is no loop, detaches the peer itself.
func (v *vector) peerDown(p *Peer) {
	v.mu.Lock()
	driven := v.poller != nil
	if driven && v.kick >= 0 {
		ringBell(v.kick)
	}
	v.mu.Unlock()
	if pt := v.portOf(p); !driven && pt != nil {
		v.detach(pt)
	}
}

func (v *vector) drive(p verbs.Poller) (verbs.Driver, error) {
	if v.dev.isClosed() {
		return nil, verbs.ErrClosed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.poller != nil {
		return nil, fmt.Errorf("vector %d already has a driver: %w", v.index, verbs.ErrBusy)
	}
	if err := p.Add(v.kick); err != nil {
		return nil, fmt.Errorf("add eventfd to poller: %w", err)
	}
	for i, pt := range *v.ports.Load() {
		if err := pt.activate(p); err != nil {
			v.deactivateLocked(p, i)
			return nil, err
		}
	}
	v.poller = p
	return &driver{v: v}, nil
}

// undrive ends driving the vector.
func (v *vector) undrive() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.deactivateLocked(v.poller, len(*v.ports.Load()))
	v.poller = nil
}

// deactivateLocked removes the first n ports and the kick fd from the poller. A port with queue pairs still counts as
// driven: they refer to memory of the peer, which the peer must not reuse before a driver has looked at them.
func (v *vector) deactivateLocked(p verbs.Poller, n int) {
	for _, pt := range (*v.ports.Load())[:n] {
		if len(pt.qps) == 0 {
			pt.driven.Store(0)
		}
		_ = p.Remove(pt.bell)
	}
	_ = p.Remove(v.kick)
}

func (v *vector) close() {
	for _, o := range v.takeOrphans() {
		o.peer.unref()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pt := range *v.ports.Load() {
		pt.peer.unref()
	}
	v.ports.Store(&[]*port{})
	closeFD(&v.kick)
}
