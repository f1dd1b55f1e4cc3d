package soft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// Limits of the device; see Attr.
const (
	maxWR       = 1 << 15
	maxSGE      = 32
	maxInline   = 1024
	maxCQE      = 1 << 22
	maxMsg      = 1 << 30
	maxRDAtomic = 128
)

// limits bound the work queues.
var limits = queues.Limits{WR: maxWR, SGE: maxSGE, Inline: maxInline}

// Device is a software RDMA device. It implements verbs.Device.
//
// Lock order: pd.mu, Device.mu, vector.strayMu. None is taken on the data path.
type Device struct {
	cfg     Config
	mtu     verbs.MTU
	gids    []verbs.GIDEntry
	vectors []*vector
	keys    keyTable
	count   counters
	async   *verbs.AsyncChannel

	qpCount, cqCount, ahCount atomic.Int64
	memory                    atomic.Int64
	gsiVector                 atomic.Int32 // vector of queue pair 1, -1: there is none

	mu     sync.Mutex // guards everything below
	closed bool
	slots  slotTable
	gsi    bool
}

var _ verbs.Device = (*Device)(nil)

// Open makes a device and its sockets. An invalid configuration is [verbs.ErrInvalid]; other errors are those of the
// system calls.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("soft device configuration: %w", err)
	}
	d := &Device{cfg: cfg.withDefaults(), async: verbs.NewAsyncChannel()}
	d.gsiVector.Store(-1)
	d.slots.init(d.cfg.Vectors, d.cfg.MaxQP)
	for _, a := range d.cfg.Addrs {
		d.gids = append(d.gids, verbs.GIDEntry{GID: verbs.GIDOf(a), Type: verbs.GIDTypeRoCEv2})
	}
	if err := d.findMTU(); err != nil {
		return nil, err
	}
	for i := range d.cfg.Vectors {
		v, err := newVector(d, i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open soft device: %w", err), d.Close())
		}
		d.vectors = append(d.vectors, v)
	}
	return d, nil
}

// findMTU sets the MTU of the port, which is that of the narrowest interface.
func (d *Device) findMTU() error {
	if d.mtu = d.cfg.MTU; d.mtu != 0 {
		return nil
	}
	d.mtu = verbs.MTU4096
	for _, a := range d.cfg.Addrs {
		m, err := pathMTU(a)
		if err != nil {
			return fmt.Errorf("path MTU of %v: %w", a, err)
		}
		d.mtu = min(d.mtu, m)
	}
	return nil
}

// Name implements verbs.Device.
func (d *Device) Name() string { return d.cfg.Name }

// Attr implements verbs.Device.
func (d *Device) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Ops: verbs.OpSend | verbs.OpRDMAWrite | verbs.OpRDMARead | verbs.OpAtomic | verbs.OpSendWithInv |
			verbs.OpUC | verbs.OpUD | verbs.OpWriteImm | verbs.OpGSI,
		Provider:    "soft",
		Vectors:     d.cfg.Vectors,
		MaxQP:       d.cfg.MaxQP,
		MaxQPWR:     maxWR,
		MaxSGE:      maxSGE,
		MaxInline:   maxInline,
		MaxCQE:      maxCQE,
		MaxMR:       maxKeys - 1,
		MaxMRSize:   d.cfg.MaxMemory,
		MaxMsgSize:  maxMsg,
		MaxRDAtomic: maxRDAtomic,
		MaxAH:       maxAH,
		RemoteRegMR: true,
	}
}

// Port implements verbs.Device.
func (d *Device) Port() verbs.PortAttr {
	return verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: d.mtu,
		GIDs: slices.Clone(d.gids), UDPPort: d.cfg.UDPPort, LinkLayer: verbs.LinkLayerEthernet, PKeys: 1,
	}
}

// Async implements verbs.Device.
func (d *Device) Async() *verbs.AsyncChannel { return d.async }

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	if d.isClosed() {
		return nil, verbs.ErrClosed
	}
	return &pd{dev: d}, nil
}

// Drive implements verbs.Device.
func (d *Device) Drive(index int, p verbs.Poller) (verbs.Driver, error) {
	if index < 0 || index >= len(d.vectors) {
		return nil, fmt.Errorf("vector %d: %w", index, verbs.ErrInvalid)
	}
	return d.vectors[index].drive(p)
}

// Close implements verbs.Device. Queue pairs that are still open no longer receive or send.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	var errs []error
	for _, v := range d.vectors {
		errs = append(errs, v.close())
	}
	return errors.Join(errs...)
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}
