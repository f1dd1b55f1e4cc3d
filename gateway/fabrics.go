package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// cqDepth bounds the completions a shard has not yet looked at. It looks every
// turn, and a turn takes in about a thousand datagrams; the queue itself grows as
// it is needed.
const cqDepth = 1 << 18

// openFabrics opens the devices of the configuration, in its order. A device
// that cannot be opened is left out: connections fall back, and say so.
func (g *gateway) openFabrics() {
	open := map[config.DeviceKind]func(*gateway) (fabric, error){config.DeviceShm: openShm, config.DeviceSoft: openSoft}
	for _, kind := range g.cfg.Carriers {
		fn := open[kind]
		if fn == nil {
			g.log.Info("carrier not available in this version", "carrier", kind)
			g.absent = append(g.absent, missing(kind, admin.DeviceAbsent, "not available in this version"))
			continue
		}
		fb, err := fn(g)
		if errors.Is(err, errNoAddrs) {
			g.log.Info("carrier without a network", "carrier", kind)
			g.absent = append(g.absent, missing(kind, admin.DeviceAbsent, err.Error()))
			continue
		}
		if err != nil {
			g.log.Warn("carrier left out", "carrier", kind, "error", err)
			g.absent = append(g.absent, missing(kind, admin.DeviceFailed, err.Error()))
			continue
		}
		g.fabrics = append(g.fabrics, fb)
	}
	for _, s := range g.shards {
		s.Start()
	}
}

// missing describes a device that was asked for in vain.
func missing(kind config.DeviceKind, state admin.DeviceState, why string) admin.DeviceInfo {
	return admin.DeviceInfo{Name: string(kind) + "0", Kind: kind, Carrier: kind.Carrier(), State: state, Error: why}
}

// driven is what fabrics have in common: an RDMA device whose vectors are in
// the hands of the shards, the number of a vector being that of its shard.
type driven struct {
	g       *gateway
	dev     verbs.Device
	queues  []*loop.Queue // by shard
	drivers []verbs.Driver
	unwatch context.CancelFunc
}

// drive gives each shard its vector of the device. Shards that run already take
// the device in with their next turn. On failure the device is closed.
func drive(g *gateway, dev verbs.Device) (*driven, error) {
	d := &driven{g: g, dev: dev}
	for i, s := range g.shards {
		if err := d.driveVector(i, s); err != nil {
			return nil, errors.Join(fmt.Errorf("%s vector %d: %w", dev.Name(), i, err), d.close())
		}
	}
	for i, s := range g.shards {
		s.Post(func() {
			s.AddQueue(d.queues[i])
			s.AddDriver(d.drivers[i])
		})
	}
	d.watch()
	return d, nil
}

// watch hears of what the device finds outside of any work request.
func (d *driven) watch() {
	ctx, cancel := context.WithCancel(d.g.ctx)
	d.unwatch = cancel
	if !d.g.hold() {
		return
	}
	go func() {
		defer d.g.wg.Done()
		for {
			e, err := d.dev.Async().Get(ctx)
			if err != nil {
				return
			}
			if e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr {
				for i, s := range d.g.shards {
					s.Post(func() { violated(d.queues[i], s, e.QP) })
				}
			}
		}
	}()
}

// violated ends a flow whose peer asked its queue pair for what that does not grant.
// The caller is on the shard.
func violated(q *loop.Queue, s *loop.Shard, qp verbs.QP) {
	if c, ok := q.Members[qp.Num()].(*carry); ok && c.qp == qp {
		s.WorksFor(c.f)
		c.f.abort(negotiate.ReasonProtocolError, false)
	}
}

// started and wireLost implement fabric for devices that need not know.
func (*driven) started(*carry) {}

func (*driven) wireLost(*carry, bool) {}

func (d *driven) driveVector(i int, s *loop.Shard) error {
	cq, err := d.dev.CreateCQ(verbs.CQAttr{Depth: cqDepth, Vector: i})
	if err != nil {
		return fmt.Errorf("completion queue: %w", err)
	}
	drv, err := d.dev.Drive(i, s)
	if err != nil {
		return err
	}
	d.queues = append(d.queues, loop.NewQueue(cq))
	d.drivers = append(d.drivers, drv)
	return nil
}

// close ends the device; the shards have stopped, or never knew it.
func (d *driven) close() error {
	var errs []error
	if d.unwatch != nil {
		d.unwatch()
	}
	for _, drv := range d.drivers {
		errs = append(errs, drv.Close())
	}
	return errors.Join(append(errs, d.dev.Close())...)
}

// prepare makes the queue pair of a flow, in INIT, with its memory. The caller
// sets what is its own of the carry.
func (d *driven) prepare(f *flow, s *loop.Shard, pd verbs.PD, arena *rmb.Arena) (*carry, error) {
	rings := d.g.newRings(d.dev.Attr().RemoteMapper)
	cfg := rsocket.EndpointConfig{Dialect: rsocket.Gateway, RingSize: rings.first}
	q, limits := d.queues[s.ID()], cfg.QPCap()
	limits.MaxRecvSGE = 0 // a gateway only writes with an immediate: receives have no memory
	qp, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: q.CQ, RecvCQ: q.CQ, Cap: limits, Type: verbs.QPTRC})
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	ep, err := rsocket.NewEndpoint(qp, arena, cfg)
	if err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return &carry{
		s: s, f: f, queue: q, qp: qp, ep: ep, arena: arena, rings: rings, fd: -1, probeLen: rsocket.MaxProbe,
		patience: loop.NewTimer(nil),
	}, nil
}

// attach connects the queue pair of a carry; the caller is on its shard.
func (c *carry) attach(attr verbs.QPAttr, conn negotiate.ConnData) error {
	if c.closed {
		return errLegClosed
	}
	data, err := rsocket.ParseConnData(conn[:])
	if err != nil {
		return err
	}
	c.queue.Members[c.qp.Num()] = c
	if err := verbs.Connect(c.qp, attr); err != nil {
		return err
	}
	return c.ep.Connect(data)
}

// connData is what the peer has to know of a carry's memory.
func (c *carry) connData() (d negotiate.ConnData) {
	c.ep.ConnData().Append(d[:0])
	return d
}
