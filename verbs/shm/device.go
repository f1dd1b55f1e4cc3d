package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// Limits of the device; see Attr.
const (
	maxWR     = 1 << 15
	maxSGE    = 16
	maxInline = 1024
	maxCQE    = 1 << 22
	maxMsg    = 1 << 30
	maxAH     = 1 << 20 // per peer
)

// limits bound the work queues.
var limits = queues.Limits{WR: maxWR, SGE: maxSGE, Inline: maxInline}

// Device is a shared-memory RDMA device. It implements verbs.Device.
//
// Lock order: Device.mu, vector.mu, Peer.mu, slotTable.mu and
// janitor.mu. None is taken on the data path.
type Device struct {
	cfg      Config
	vectors  []*vector
	qps      [maxSlots]atomic.Pointer[qp] // connected queue pairs, for the drivers
	counters counters
	async    *verbs.AsyncChannel
	slots    slotTable
	wg       sync.WaitGroup

	janitor *janitor
	warden  *warden
	reclaim jobGroup // jobs of the peers
	peerIDs atomic.Uint64

	mu        sync.Mutex // guards everything below
	closed    bool
	listener  *Listener
	peers     map[[16]byte]*Peer    // pending and connected, by key
	attaching map[[16]byte]*attempt // calls in progress, by key
}

var _ verbs.Device = (*Device)(nil)

// Open makes a device. It has no peers until Listen or Attach.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("shm device configuration: %w", err)
	}
	d := &Device{
		cfg:       cfg.withDefaults(),
		async:     verbs.NewAsyncChannel(),
		peers:     map[[16]byte]*Peer{},
		attaching: map[[16]byte]*attempt{},
	}
	d.janitor = newJanitor(d)
	for i := range d.cfg.Vectors {
		v, err := newVector(d, i)
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.vectors = append(d.vectors, v)
	}
	d.warden = newWarden(d)
	return d, nil
}

// Name implements verbs.Device.
func (d *Device) Name() string { return "shm-" + hex.EncodeToString(d.cfg.GatewayID[:4]) }

// Attr implements verbs.Device.
func (d *Device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Ops:          verbs.OpRDMAWrite | verbs.OpWriteImm | verbs.OpUD,
		Provider:     "shm",
		Vectors:      d.cfg.Vectors,
		MaxQP:        maxSlots - firstSlot,
		MaxQPWR:      maxWR,
		MaxSGE:       maxSGE,
		MaxInline:    maxInline,
		MaxCQE:       maxCQE,
		MaxMR:        maxKeys - 1,
		MaxMRSize:    d.cfg.PeerQuota,
		MaxMsgSize:   maxMsg,
		MaxAH:        maxAH,
		CQHoldsBack:  true,
		RemoteMapper: true,
	}
}

// Port implements verbs.Device: there is no network, so no addresses.
func (d *Device) Port() verbs.PortAttr {
	return verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096, PKeys: 1}
}

// Async implements verbs.Device.
func (d *Device) Async() *verbs.AsyncChannel { return d.async }

// AllocPD implements verbs.Device: the protection domain of this device is the
// peer, so it returns verbs.ErrNotSupported. Use Peer.PD.
func (d *Device) AllocPD() (verbs.PD, error) {
	return nil, fmt.Errorf("protection domains belong to peers: %w", verbs.ErrNotSupported)
}

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(attr verbs.CQAttr) (verbs.CQ, error) {
	if attr.Vector < 0 || attr.Vector >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", attr.Vector, verbs.ErrInvalid)
	}
	if attr.Arrived != nil {
		return nil, fmt.Errorf("completion queue for other goroutines: %w", verbs.ErrNotSupported)
	}
	queue, err := queues.NewCompletions(attr.Depth, maxCQE)
	if err != nil {
		return nil, err
	}
	if d.isClosed() {
		return nil, verbs.ErrClosed
	}
	return &cq{vec: d.vectors[attr.Vector], queue: queue}, nil
}

// Drive implements verbs.Device.
func (d *Device) Drive(vector int, p verbs.Poller) (verbs.Driver, error) {
	if vector < 0 || vector >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", vector, verbs.ErrInvalid)
	}
	return d.vectors[vector].drive(p)
}

// Peers returns the peers that are not down, pending ones included.
func (d *Device) Peers() []*Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	ps := make([]*Peer, 0, len(d.peers))
	for _, p := range d.peers {
		ps = append(ps, p)
	}
	return ps
}

// forget removes a dead peer from the device.
func (d *Device) forget(p *Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.peers[p.key] == p {
		delete(d.peers, p.key)
	}
}

// Close implements verbs.Device: it ends the rendezvous and all peers, and waits for the device's goroutines. Shared
// memory stays mapped while open queue pairs or memory regions refer to it.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	l := d.listener
	d.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	for _, p := range d.Peers() {
		_ = p.Close()
	}
	d.wg.Wait()
	d.janitor.close()
	if d.warden != nil { // nil if Open failed
		d.warden.close()
	}
	for _, v := range d.vectors {
		v.close()
	}
	d.reclaim.Close()
	return nil
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
