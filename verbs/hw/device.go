package hw

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// Device is a port of an adapter. It implements [verbs.Device]; its drivers
// implement [verbs.Peeker].
//
// The context of the library lives until the device and the last of its objects are closed, in any order: the library
// must not be called after that.
//
// Lock order: pd.users and cq.users, vector.mu, Device.mu. None is taken on the data path.
type Device struct {
	cfg     Config
	ctx     ibv.Context
	attr    verbs.DeviceAttr
	vectors []*vector
	queues  queueTable
	objects objects
	async   *verbs.AsyncChannel
	watcher watcher

	linkLayer verbs.LinkLayer
	gids      atomic.Pointer[[]verbs.GIDEntry] // as last read; nil after a change
	port      atomic.Pointer[verbs.PortAttr]   // as last read; nil if that failed
	pkeys     int                              // size of the P_Key table

	adapterVectors int // completion vectors that the adapter has

	use                                               counters
	posted, postErrors, completions, strays, overruns atomic.Uint64

	mu      sync.Mutex // guards everything below
	closed  bool
	holders int // the device itself, its objects and drivers
}

// counters count the objects of a device.
type counters struct{ qps, cqs, ahs, mrs, pds atomic.Int64 }

var _ verbs.Device = (*Device)(nil)

// Open opens an adapter. [ErrLibraryAbsent], [ErrProviderAbsent] and [ErrNoDevice] mean that there is none,
// [ErrUnsuitable] that it cannot be used, and [verbs.ErrNotSupported] that the program was built without cgo.
func Open(cfg Config) (*Device, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("RDMA device configuration: %w", err)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, err := cfg.Library.Open(cfg.Adapter)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Adapter, err)
	}
	d := &Device{cfg: cfg, ctx: ctx, async: verbs.NewAsyncChannel(), holders: 1}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", cfg.Adapter, err), d.Close())
	}
	return d, nil
}

func (d *Device) open() error {
	if err := d.probe(); err != nil {
		return err
	}
	for i := range d.cfg.Vectors {
		v, err := newVector(d, i, i%max(d.adapterVectors, 1))
		if err != nil {
			return err
		}
		d.vectors = append(d.vectors, v)
	}
	return d.watcher.start(d)
}

// Name implements verbs.Device.
func (d *Device) Name() string {
	if d.cfg.Port > 1 {
		return fmt.Sprintf("%s/%d", d.cfg.Adapter, d.cfg.Port)
	}
	return d.cfg.Adapter
}

// Attr implements verbs.Device.
func (d *Device) Attr() verbs.DeviceAttr { return d.attr }

// Async implements verbs.Device.
func (d *Device) Async() *verbs.AsyncChannel { return d.async }

// Stats returns the counters of the device.
func (d *Device) Stats() Stats {
	n := func(c *atomic.Int64) int { return int(c.Load()) }
	return Stats{
		QPs: n(&d.use.qps), CQs: n(&d.use.cqs), AHs: n(&d.use.ahs), MRs: n(&d.use.mrs), PDs: n(&d.use.pds),
		Posted: d.posted.Load(), PostErrors: d.postErrors.Load(), Completions: d.completions.Load(),
		Strays: d.strays.Load(), Overruns: d.overruns.Load(),
	}
}

// Port implements verbs.Device. If the port cannot be queried, it returns the previous result once, since the adapter
// may be short of memory for a moment. If the device is closed, or two queries in a row fail, the port is down.
func (d *Device) Port() verbs.PortAttr {
	p, err := d.queryPort()
	if err == nil {
		kept := p
		kept.GIDs = slices.Clone(p.GIDs)
		d.port.Store(&kept)
		return p
	}
	if before := d.port.Swap(nil); before != nil && !d.isClosed() {
		d.cfg.Logger.Warn("port not asked", "device", d.Name(), "error", err)
		return *before
	}
	return verbs.PortAttr{State: verbs.PortDown}
}

// queryPort queries the library for the port.
func (d *Device) queryPort() (verbs.PortAttr, error) {
	if err := d.hold(); err != nil {
		return verbs.PortAttr{}, err
	}
	defer func() { _ = d.release() }()
	p, err := d.ctx.QueryPort(d.cfg.Port)
	if err != nil {
		return p, failure("query port", err)
	}
	if p.LinkLayer == verbs.LinkLayerEthernet {
		p.UDPPort = verbs.RoCEUDPPort
	}
	table := slices.Clone(p.GIDs)
	d.gids.Store(&table)
	return p, nil
}

// PKey returns an entry of the port's P_Key table: bit 15 is set if the port is a full member; 0 if there is no entry.
func (d *Device) PKey(index int) (uint16, error) {
	if err := d.hold(); err != nil {
		return 0, err
	}
	defer func() { _ = d.release() }()
	k, err := d.ctx.QueryPKey(d.cfg.Port, index)
	return k, failure("query P_Key", err)
}

// hold keeps the library's context open for a new object or a call.
func (d *Device) hold() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.ErrClosed
	}
	d.holders++
	return nil
}

func (d *Device) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// release is called at the end of an object; the last one closes the context.
func (d *Device) release() error {
	d.mu.Lock()
	d.holders--
	last := d.holders == 0
	d.mu.Unlock()
	if !last {
		return nil
	}
	var errs []error
	for _, v := range d.vectors {
		errs = append(errs, failure("destroy completion channel", d.ctx.DestroyChannel(v.channel.h)))
	}
	return errors.Join(append(errs, failure("close context", d.ctx.Close()))...)
}

// Close implements verbs.Device. Objects that are still open continue to work until they are closed.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.watcher.stop()
	return d.release()
}

// overran records that a completion queue lost completions.
func (d *Device) overran(c *cq) {
	if !c.reported.Swap(true) {
		d.overruns.Add(1)
		d.async.Notify(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c})
		c.overrun.Store(true)
	}
}
