package carrier

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// cqDepth bounds the completions that a shard has not yet polled. A shard polls every turn,
// and a turn receives about a thousand datagrams; the queue itself grows on demand.
const cqDepth = 1 << 18

// Driven is the common part of the device kinds: an RDMA device whose vectors are driven by
// the shards. Vector i belongs to shard i.
type Driven struct {
	env     *Env
	Device  verbs.Device
	queues  []*loop.Queue    // by shard
	works   []*rsocket.Works // by shard
	drivers []verbs.Driver
	unwatch context.CancelFunc
	watched sync.WaitGroup
}

// Queue returns the completion queue of a shard.
func (d *Driven) Queue(s *loop.Shard) *loop.Queue { return d.queues[s.ID()] }

// drive assigns each shard its vector of the device. Running shards pick up the device at
// their next turn. On failure the device is closed.
func drive(env *Env, dev verbs.Device) (*Driven, error) {
	d := &Driven{env: env, Device: dev}
	for i, s := range env.Shards {
		if err := d.driveVector(i, s); err != nil {
			return nil, errors.Join(fmt.Errorf("%s vector %d: %w", dev.Name(), i, err), d.close())
		}
	}
	for i, s := range env.Shards {
		s.Post(func() {
			s.AddQueue(d.queues[i])
			s.AddDriver(d.drivers[i])
		})
	}
	d.watch()
	return d, nil
}

// watch receives the asynchronous events of the device.
func (d *Driven) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	d.unwatch = cancel
	d.watched.Go(func() {
		for {
			e, err := d.Device.Async().Get(ctx)
			if err != nil {
				return
			}
			if e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr {
				for i, s := range d.env.Shards {
					s.Post(func() { violated(d.queues[i], s, e.QP) })
				}
			}
		}
	})
}

// violated tells a link that its peer requested something that the queue pair does not grant.
// It must be called on the shard.
func violated(q *loop.Queue, s *loop.Shard, qp verbs.QP) {
	if l, ok := q.Members[qp.Num()].(*Link); ok && l.QP == qp {
		s.WorksFor(l.Owner())
		l.of.User.Violated()
	}
}

// began and wireLost implement medium for devices that need neither.
func (*Driven) began(*Link) {}

func (*Driven) wireLost(*Link, bool) {}

func (d *Driven) driveVector(i int, s *loop.Shard) error {
	cq, err := d.Device.CreateCQ(verbs.CQAttr{Depth: cqDepth, Vector: i})
	if err != nil {
		return fmt.Errorf("completion queue: %w", err)
	}
	drv, err := d.Device.Drive(i, s)
	if err != nil {
		return err
	}
	d.queues = append(d.queues, loop.NewQueue(cq))
	d.works = append(d.works, rsocket.NewWorks())
	d.drivers = append(d.drivers, drv)
	return nil
}

// close closes the device. The shards must have stopped, or never have known it.
func (d *Driven) close() error {
	var errs []error
	if d.unwatch != nil {
		d.unwatch()
		d.watched.Wait()
	}
	for _, drv := range d.drivers {
		errs = append(errs, drv.Close())
	}
	return errors.Join(append(errs, d.Device.Close())...)
}

// prepare makes the queue pair of a link, in INIT, with its memory. The caller sets the
// device-specific fields of the link.
func (d *Driven) prepare(r Request, pd verbs.PD, arena *rmb.Arena) (*Link, error) {
	limits := linkCap()
	limits.MaxRecvSGE = 0 // a gateway only writes with immediate data: receives need no memory
	p, err := d.env.newPair(d.Queue(r.Shard), d.works[r.Shard.ID()], pd, arena, limits, d.env.newRings(d.Device.Attr().RemoteMapper), r.Memory)
	if err != nil {
		return nil, err
	}
	return p.link(d.env, r), nil
}

// undrive detaches a device from running shards. No link may use it.
func (d *Driven) undrive() {
	for i, s := range d.env.Shards {
		s.Call(func() {
			s.DropQueue(d.queues[i])
			s.DropDriver(d.drivers[i])
		})
	}
}
