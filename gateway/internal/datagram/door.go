package datagram

import (
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Engine carries the datagrams of a gateway's host. Its methods are safe for concurrent use,
// but the shard must not call those that wait for it. A nil Engine carries nothing, and its
// methods do nothing.
type Engine struct{ core *engine }

// Open starts an engine on its shard, which must be running. It waits for the shard.
func Open(cfg Config) (*Engine, error) {
	e, err := openEngine(cfg)
	if err != nil {
		return nil, err
	}
	return &Engine{core: e}, nil
}

// post runs fn on the shard, unless the engine has stopped.
func (d *Engine) post(fn func(e *engine)) {
	if d != nil {
		d.core.s.Post(func() { d.core.unlessStopped(fn) })
	}
}

// call runs fn on the shard, unless the engine has stopped, and waits for it.
func (d *Engine) call(fn func(e *engine)) {
	if d != nil {
		d.core.s.Call(func() { d.core.unlessStopped(fn) })
	}
}

// Port returns the datagram port to announce to peers, or 0 without an engine.
func (d *Engine) Port() uint16 {
	if d == nil {
		return 0
	}
	return d.core.cfg.Port
}

// Asked handles a question of the programs about the peer of a tuple.
func (d *Engine) Asked(t ebpf.Tuple) {
	d.post(func(e *engine) { e.want(addrPair{t.Local.Addr(), t.Remote.Addr()}) })
}

// News reports what a connection's handshake said: the datagram port of the peer gateway, or
// 0 if it has none.
func (d *Engine) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	if port != 0 {
		d.post(func(e *engine) { e.news(t.Local.Addr(), netip.AddrPortFrom(t.Remote.Addr(), port), gateway) })
	}
}

// PeerDown reports that a peer that shared memory has hung up.
func (d *Engine) PeerDown(p *shm.Peer) { d.post(func(e *engine) { e.peerDown(p) }) }

// leaveMost bounds the wait for a device to be left: a failed device may hang.
const leaveMost = 500 * time.Millisecond

// LeaveDevice stops the use of a device and waits as long as that takes on a healthy one.
// Flows that it carried go native.
func (d *Engine) LeaveDevice(dev verbs.Device) {
	var left []*port
	d.call(func(e *engine) {
		for p := range e.ports {
			if p.dev == dev {
				e.portLost(p)
				left = append(left, p)
			}
		}
	})
	late := time.After(leaveMost)
	for _, p := range left {
		select {
		case <-p.closed:
		case <-late:
			return
		}
	}
}

// queueNeed is the number of completions that a queue pair on a network may have pending.
const queueNeed = sendDepth + receiveDepth

// SetKeys replaces the keys.
func (d *Engine) SetKeys(keys negotiate.Keys) {
	d.post(func(e *engine) { e.act(e.resolve.SetKeys(keys)) })
}

// Flush forgets everything that keeps datagrams native.
func (d *Engine) Flush() { d.post(func(e *engine) { e.act(e.resolve.Flush()) }) }

// Quiesce makes all datagrams native for a reason and tells the peers. Datagrams in flight
// are still delivered. ReasonDrained is permanent. Quiesce waits for the shard.
func (d *Engine) Quiesce(r negotiate.Reason) { d.call(func(e *engine) { e.quiesce(r) }) }

// Resume undoes Quiesce. It waits for the shard.
func (d *Engine) Resume() { d.call(func(e *engine) { e.resume() }) }

// Flows describes all flows.
func (d *Engine) Flows() []report.ConnInfo {
	if d == nil {
		return nil
	}
	return d.core.flows.infos(time.Now())
}

// CountFlows adds the number of flows of each peer.
func (d *Engine) CountFlows(to map[netip.Addr]int) {
	if d != nil {
		d.core.flows.countPeers(to)
	}
}

// Snapshot sets the datagram counters; without an engine they are empty.
func (d *Engine) Snapshot(s *report.Snapshot) {
	emptySnapshot(s)
	if d != nil {
		d.core.count.snapshot(s)
		d.core.flows.snapshot(s.UDP.Flows)
	}
}

// Close stops the engine: datagrams of local programs are native from here on. The queue
// pairs stay until Release. Close waits for the shard.
func (d *Engine) Close() {
	if d != nil {
		d.core.close()
	}
}

// Release closes the queue pairs of a closed engine, after its shard has halted and before
// the devices are closed.
func (d *Engine) Release() {
	if d != nil {
		d.core.s.Call(d.core.closePorts) // after answers posted meanwhile
		await(&d.core.closing)
	}
}

// Leave closes the engine and its queue pairs while the shard keeps running. It waits for the
// shard. Queue pairs of an adapter that hangs stay.
func (d *Engine) Leave() {
	if d == nil {
		return
	}
	d.core.close()
	d.core.s.Call(func() {
		d.core.closePorts()
		d.core.s.DropDriver(d.core)
	})
	await(&d.core.closing)
}

// closeMost bounds the wait for work on adapters when an engine ends: one that hangs must not
// keep a successor waiting.
const closeMost = 2 * time.Second

// await waits for goroutines that may be in calls of an adapter, for at most closeMost.
func await(work *sync.WaitGroup) {
	over := make(chan struct{})
	go func() {
		work.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(closeMost):
	}
}
