package datagram

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// keeperJobs bounds the jobs waiting for the keeper.
	keeperJobs = 64
	// keeperPatience bounds a rendezvous.
	keeperPatience = time.Second
	// maxAttaching bounds the gateways being attached to at a time, and the offers waiting
	// per gateway.
	maxAttaching = 8
	// maxMemoryPorts bounds the shm peers that have a port.
	maxMemoryPorts = 64
)

// keeper makes ports, which can take long: it may involve memory, a device on a new address,
// or a rendezvous. It runs on a goroutine of its own, so that no loop waits.
type keeper struct {
	e    *engine
	jobs chan func()
	stop context.CancelFunc
	ctx  context.Context // its lifetime
	done sync.WaitGroup

	// Owned by the keeper's goroutine.
	network map[verbs.Device]*port
	memory  []*port                         // one per peer; least recently found first
	met     map[netip.Addr]*carrier.ShmPeer // by address: peers that have offered memory
	// attaching holds the gateways being attached to, by rendezvous name, with what waits for
	// each.
	attaching map[string][]func()
}

func newKeeper(e *engine) *keeper {
	k := &keeper{
		e: e, jobs: make(chan func(), keeperJobs), network: map[verbs.Device]*port{},
		met: map[netip.Addr]*carrier.ShmPeer{}, attaching: map[string][]func(){},
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.done.Go(k.run)
	return k
}

func (k *keeper) run() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case job := <-k.jobs:
			job()
		}
	}
}

// ways finds what this host has for a pair of addresses and calls use with it on the shard. q
// is the peer's query, or nil if this gateway will send one. It returns false if too many
// jobs are waiting already.
func (k *keeper) ways(pair addrPair, q *resolve.Resolve, use func([]way)) bool {
	find := func() {
		list := k.find(pair, q)
		k.e.s.Post(func() { use(list) })
	}
	job := find
	if q != nil {
		job = func() { k.attach(pair.remote, q, find) }
	}
	select {
	case k.jobs <- job:
		return true
	default:
		return false
	}
}

// find returns the ways in the configured order.
func (k *keeper) find(pair addrPair, q *resolve.Resolve) (list []way) {
	for _, prov := range k.e.cfg.Providers {
		var w way
		var err error
		switch prov := prov.(type) {
		case memory:
			w, err = k.memoryWay(prov, pair, q)
		case network:
			w, err = k.networkWay(prov, pair)
		}
		switch {
		case err == nil:
			list = append(list, w)
		case !errors.Is(err, carrier.ErrNotHere) && !errors.Is(err, fs.ErrNotExist):
			k.e.log.Debug("datagram port", "carrier", prov.Kind(), "peer", pair.remote, "error", err)
		}
	}
	return list
}

// networkWay returns the port of the device that has the local address.
func (k *keeper) networkWay(prov network, pair addrPair) (w way, err error) {
	dev, err := prov.DatagramsAt(pair.local, pair.remote)
	if err != nil {
		return w, err
	}
	p := k.network[dev.Device]
	if p == nil || p.is(portGone) {
		maps.DeleteFunc(k.network, func(_ verbs.Device, p *port) bool { return p.is(portGone) }) // the device may be, too
		if p, err = newNetworkPort(k.e, prov.Kind(), &dev); err != nil {
			return w, err
		}
		k.hand(p)
		k.network[dev.Device] = p
	}
	w = way{port: p, gid: dev.GID, class: dev.TrafficClass, level: dev.ServiceLevel, offer: p.describe()}
	w.offer.GID, w.offer.UDPPort = dev.Port.GIDs[dev.GID].GID, dev.Port.UDPPort
	w.offer.Mixed = dev.Mixed && w.offer.UDPPort == verbs.RoCEUDPPort
	return w, nil
}

// memoryWay returns the port of the peer that shares memory with this host: the one that the
// query names, or one offered by this gateway.
func (k *keeper) memoryWay(prov memory, pair addrPair, q *resolve.Resolve) (w way, err error) {
	peer, err := k.memoryPeer(prov, pair, q)
	if err != nil {
		return w, err
	}
	p, err := k.memoryPort(prov, peer)
	if err != nil {
		return w, err
	}
	w = way{port: p, offer: p.describe()}
	w.offer.Name, w.offer.Key = peer.Name(), peer.Key()
	return w, nil
}

// memoryPort finds or makes the port of a peer.
func (k *keeper) memoryPort(prov memory, peer *carrier.ShmPeer) (p *port, err error) {
	k.dropMemory()
	if i := slices.IndexFunc(k.memory, func(p *port) bool { return p.shm == peer.Peer }); i >= 0 {
		p = k.memory[i]
		k.memory = slices.Delete(k.memory, i, i+1)
	} else {
		if !k.memoryRoom() {
			return nil, fmt.Errorf("%d shm peers with datagrams: %w", len(k.memory), verbs.ErrNoMemory)
		}
		dev, queue := prov.Datagrams(k.e.s)
		at := place{queue: queue, pd: peer.PD(), mtu: dev.Port.ActiveMTU.Bytes(), shm: peer.Peer, hold: func() (leave func()) {
			prov.Hold(peer)
			return sync.OnceFunc(func() { prov.Leave(peer) })
		}}
		if p, err = newPort(k.e, prov.Kind(), at); err != nil {
			return nil, err
		}
		k.hand(p)
	}
	k.memory = append(k.memory, p)
	return p, nil
}

// memoryRoom makes room for a port by dropping the first one that has not started, whose
// offer may never be taken. It returns false if all are in use.
func (k *keeper) memoryRoom() bool {
	if len(k.memory) < maxMemoryPorts {
		return true
	}
	i := slices.IndexFunc(k.memory, func(p *port) bool {
		if p.is(portMade) { // ask the shard, which may just be starting it
			k.e.s.Call(func() { k.e.peerGone(p) })
		}
		return p.is(portGone)
	})
	if i < 0 {
		return false
	}
	k.memory = slices.Delete(k.memory, i, i+1)
	return true
}

// memoryPeer finds the peer.
func (k *keeper) memoryPeer(prov memory, pair addrPair, q *resolve.Resolve) (p *carrier.ShmPeer, err error) {
	if q == nil {
		if p = k.met[pair.remote]; p == nil || p.Err() != nil {
			p, err = prov.PeerFor(pair.remote, false)
		}
		return p, err
	}
	if o := k.memoryOffer(prov, q); o != nil {
		p = prov.Known(o.Key)
	}
	if p == nil {
		err = carrier.ErrNotHere
	}
	return p, err
}

// memoryOffer returns the offer of memory in a query from this kernel, or nil.
func (k *keeper) memoryOffer(prov memory, q *resolve.Resolve) *resolve.UDOffer {
	if q.HostID != k.e.cfg.HostID || q.GatewayID == k.e.cfg.GatewayID {
		return nil
	}
	return resolve.FindUDOffer(q.Offers, prov.Kind())
}

// attach attaches to the offer in a query, if it has one that is not known yet, and then
// calls then. A stopped gateway can delay this, so each gateway has a goroutine of its own
// and delays no other.
func (k *keeper) attach(from netip.Addr, q *resolve.Resolve, then func()) {
	for _, prov := range k.e.cfg.Providers {
		prov, shares := prov.(memory)
		if !shares {
			continue
		}
		o := k.memoryOffer(prov, q)
		if o == nil || prov.Known(o.Key) != nil {
			continue
		}
		waiting, busy := k.attaching[o.Name]
		call := func() { k.done.Go(func() { k.call(prov, from, o, then) }) }
		switch {
		case busy && len(waiting) < maxAttaching:
			k.attaching[o.Name] = append(waiting, call)
		case !busy && len(k.attaching) < maxAttaching:
			k.attaching[o.Name] = nil
			call()
		default:
			k.e.count.ignored.Add(1)
		}
		return
	}
	then()
}

// call attaches to an offer on a goroutine of its own, and then runs then on the keeper's.
func (k *keeper) call(prov memory, from netip.Addr, o *resolve.UDOffer, then func()) {
	ctx, cancel := context.WithTimeout(k.ctx, keeperPatience)
	defer cancel()
	p, err := prov.Attach(ctx, from, o.Name, o.Key)
	called := func() {
		if err != nil {
			k.e.log.Debug("attach to offer of memory", "peer", from, "error", err)
		} else {
			k.meet(from, p)
		}
		then()
		if waiting := k.attaching[o.Name]; len(waiting) > 0 {
			k.attaching[o.Name] = waiting[1:]
			waiting[0]()
			return
		}
		delete(k.attaching, o.Name)
	}
	select {
	case k.jobs <- called:
	case <-k.ctx.Done():
	}
}

// meet remembers that the peer at an address has offered memory.
func (k *keeper) meet(at netip.Addr, p *carrier.ShmPeer) {
	if _, known := k.met[at]; !known && len(k.met) >= maxPeers {
		dropOne(k.met)
	}
	k.met[at] = p
}

// dropMemory forgets the ports of peers that are down. These include withdrawn offers, which
// the device does not report.
func (k *keeper) dropMemory() {
	k.memory = slices.DeleteFunc(k.memory, func(p *port) bool {
		if p.is(portGone) {
			return true
		}
		if p.shm.Err() != nil {
			k.e.s.Post(func() { k.e.peerGone(p) })
			return true
		}
		return false
	})
}

// hand passes a port to the shard.
func (k *keeper) hand(p *port) {
	k.e.s.Call(func() {
		k.e.ports[p] = struct{}{}
	})
}

// peerDown is called when the shm device reports that a peer has hung up.
func (e *engine) peerDown(peer *shm.Peer) {
	for p := range e.ports {
		if p.shm == peer {
			e.peerGone(p)
		}
	}
}

// peerGone handles the end of a port's peer or of its offer. A queue pair that has started
// reports that itself, after what the peer has sent, which may say why it left.
func (e *engine) peerGone(p *port) {
	if p.is(portMade) {
		e.portLost(p)
	}
}

// close stops the keeper's goroutines, except one in a call of an adapter that hangs.
func (k *keeper) close() {
	k.stop()
	await(&k.done)
}
