package datagram

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// Engine carries the datagrams of a gateway's host. Its methods are safe for concurrent
// use; the shard must not call those that wait for it. A nil Engine carries nothing, and
// its methods do nothing.
type Engine struct{ core *engine }

// Open starts an engine on its shard, which runs. It waits for the shard.
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

// Port is the datagram port that peers are told of; 0 without an engine.
func (d *Engine) Port() uint16 {
	if d == nil {
		return 0
	}
	return d.core.cfg.Port
}

// Asked takes the programs' question about the peer of a tuple.
func (d *Engine) Asked(t ebpf.Tuple) {
	d.post(func(e *engine) { e.want(addrPair{t.Local.Addr(), t.Remote.Addr()}) })
}

// News says what the handshake of a connection told: the datagram port of the peer's
// gateway, 0 without one.
func (d *Engine) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	if port != 0 {
		d.post(func(e *engine) { e.news(t.Local.Addr(), netip.AddrPortFrom(t.Remote.Addr(), port), gateway) })
	}
}

// PeerDown says that a peer that shared memory has hung up.
func (d *Engine) PeerDown(p *shm.Peer) { d.post(func(e *engine) { e.peerDown(p) }) }

// leaveMost bounds the wait for a device that is being left: one that has failed may hang.
const leaveMost = 500 * time.Millisecond

// LeaveDevice ends the use of a device, and waits for that as long as a healthy one takes. Flows
// that it carried go natively.
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

// queueNeed is how many completions a queue pair on a network may have pending.
const queueNeed = sendDepth + receiveDepth

// SetKeys puts keys in force.
func (d *Engine) SetKeys(keys negotiate.Keys) {
	d.post(func(e *engine) { e.act(e.resolve.SetKeys(keys)) })
}

// Flush forgets what keeps datagrams native.
func (d *Engine) Flush() { d.post(func(e *engine) { e.act(e.resolve.Flush()) }) }

// Quiesce makes all datagrams native for a reason and tells the peers. What is on its
// way is still delivered. ReasonDrained is for good. It waits for the shard.
func (d *Engine) Quiesce(r negotiate.Reason) { d.call(func(e *engine) { e.quiesce(r) }) }

// Resume takes back what Quiesce did. It waits for the shard.
func (d *Engine) Resume() { d.call(func(e *engine) { e.resume() }) }

// Flows describes all flows.
func (d *Engine) Flows() []report.ConnInfo {
	if d == nil {
		return nil
	}
	return d.core.flows.infos(time.Now())
}

// CountFlows adds the flows of each peer.
func (d *Engine) CountFlows(to map[netip.Addr]int) {
	if d != nil {
		d.core.flows.countPeers(to)
	}
}

// Snapshot sets the numbers of datagrams; without an engine there are none.
func (d *Engine) Snapshot(s *report.Snapshot) {
	emptySnapshot(s)
	if d != nil {
		d.core.count.snapshot(s)
		d.core.flows.snapshot(s.UDP.Flows)
	}
}

// Close ends the engine: datagrams of local programs are native from here on. The
// queue pairs stay until Release. It waits for the shard.
func (d *Engine) Close() {
	if d != nil {
		d.core.close()
	}
}

// Release ends the queue pairs of an engine that was closed, after its shard has halted
// and before the devices are closed.
func (d *Engine) Release() {
	if d != nil {
		d.core.s.Call(d.core.closePorts) // after answers that were posted meanwhile
		d.core.closing.Wait()
	}
}

// Leave closes the engine and ends its queue pairs while the shard goes on. It waits
// for the shard.
func (d *Engine) Leave() {
	if d == nil {
		return
	}
	d.core.close()
	d.core.s.Call(func() {
		d.core.closePorts()
		d.core.s.DropDriver(d.core)
	})
	d.core.closing.Wait()
}
