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

// cqDepth bounds the completions a shard has not yet looked at. It looks every
// turn, and a turn takes in about a thousand datagrams; the queue itself grows as
// it is needed.
const cqDepth = 1 << 18

// Driven is what the kinds of devices have in common: an RDMA device whose vectors are in
// the hands of the shards, the number of a vector being that of its shard.
type Driven struct {
	env     *Env
	Device  verbs.Device
	queues  []*loop.Queue    // by shard
	works   []*rsocket.Works // likewise
	drivers []verbs.Driver
	unwatch context.CancelFunc
	watched sync.WaitGroup
}

// Queue returns the completion queue of a shard.
func (d *Driven) Queue(s *loop.Shard) *loop.Queue { return d.queues[s.ID()] }

// drive gives each shard its vector of the device. Shards that run already take
// the device in with their next turn. On failure the device is closed.
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

// watch hears of what the device finds outside of any work request.
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

// violated tells a link that its peer asked the queue pair for what that does not grant.
// The caller is on the shard.
func violated(q *loop.Queue, s *loop.Shard, qp verbs.QP) {
	if l, ok := q.Members[qp.Num()].(*Link); ok && l.QP == qp {
		s.WorksFor(l.Owner())
		l.of.User.Violated()
	}
}

// began and wireLost implement failing for devices that need not know.
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

// close ends the device; the shards have stopped, or never knew it.
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

// prepare makes the queue pair of a link, in INIT, with its memory. The caller
// sets what is its own of the link.
func (d *Driven) prepare(r Request, pd verbs.PD, arena *rmb.Arena) (*Link, error) {
	limits := linkCap()
	limits.MaxRecvSGE = 0 // a gateway only writes with an immediate: receives have no memory
	p, err := d.env.newPair(d.Queue(r.Shard), d.works[r.Shard.ID()], pd, arena, limits, d.env.newRings(d.Device.Attr().RemoteMapper), r.Memory)
	if err != nil {
		return nil, err
	}
	return p.link(d.env, r), nil
}

// undrive takes a device away from shards that run. No link uses it.
func (d *Driven) undrive() {
	for i, s := range d.env.Shards {
		s.Call(func() {
			s.DropQueue(d.queues[i])
			s.DropDriver(d.drivers[i])
		})
	}
}
