package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// keeperJobs bounds the peers that wait for the keeper.
	keeperJobs = 64
	// keeperPatience bounds a rendezvous.
	keeperPatience = time.Second
	// dgramShmPorts bounds the shm peers with a port.
	dgramShmPorts = 64
)

// dgramKeeper makes ports, which can take a while: memory, a device on a new
// address, a rendezvous. It has a goroutine of its own, so that no loop waits.
type dgramKeeper struct {
	e    *dgramEngine
	jobs chan func()
	stop context.CancelFunc
	ctx  context.Context // its lifetime
	done sync.WaitGroup
	mtu  atomic.Int64 // the most of a packet; 0: what the device can

	// Of its goroutine.
	soft map[*carrier.SoftUnit]*dgramPort
	shm  map[*shm.Peer]*dgramPort
	met  map[netip.Addr]*carrier.ShmPeer // peers that have offered memory, by address
}

func newDgramKeeper(e *dgramEngine) *dgramKeeper {
	k := &dgramKeeper{
		e: e, jobs: make(chan func(), keeperJobs), soft: map[*carrier.SoftUnit]*dgramPort{}, shm: map[*shm.Peer]*dgramPort{},
		met: map[netip.Addr]*carrier.ShmPeer{},
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.done.Go(k.run)
	return k
}

func (k *dgramKeeper) run() {
	for {
		select {
		case <-k.ctx.Done():
			return
		case job := <-k.jobs:
			job()
		}
	}
}

// ways finds what this host has for a pair of addresses and gives it to use, on
// the shard. q is the query of the peer, nil if we are to ask. False means that
// too many wait already.
func (k *dgramKeeper) ways(pair dgramPair, q *resolve.Resolve, use func([]dgramWay)) bool {
	job := func() {
		list := k.find(pair, q)
		k.e.s.Post(func() { use(list) })
	}
	select {
	case k.jobs <- job:
		return true
	default:
		return false
	}
}

// find returns the ways in the order of the configuration.
func (k *dgramKeeper) find(pair dgramPair, q *resolve.Resolve) (list []dgramWay) {
	for _, fb := range k.e.g.fabrics {
		var w dgramWay
		var err error
		switch fb := fb.(type) {
		case *carrier.Shm:
			w, err = k.shmWay(fb, pair, q)
		case *carrier.Soft:
			w, err = k.softWay(fb, pair)
		default:
			continue
		}
		switch {
		case err == nil:
			list = append(list, w)
		case !errors.Is(err, carrier.ErrNotHere) && !errors.Is(err, fs.ErrNotExist):
			k.e.log.Debug("datagram port", "carrier", fb.Kind(), "peer", pair.remote, "error", err)
		}
	}
	return list
}

// softWay is the port of the device that has the local address.
func (k *dgramKeeper) softWay(sf *carrier.Soft, pair dgramPair) (w dgramWay, err error) {
	at, err := sf.PortOf(pair.local)
	if err != nil {
		return w, err
	}
	p := k.soft[at.Unit]
	if p == nil || p.gone.Load() {
		pd, err := at.Unit.AllocPD()
		if err != nil {
			return w, fmt.Errorf("protection domain: %w", err)
		}
		if p, err = k.newPort(at.Unit.Driven, negotiate.CarrierSoft, pd, at.Unit.Port.ActiveMTU.Bytes(), nil); err != nil {
			return w, errors.Join(err, pd.Close())
		}
		k.soft[at.Unit] = p
	}
	w = dgramWay{port: p, gid: at.GID, offer: p.describe()}
	w.offer.GID, w.offer.UDPPort = at.Unit.Port.GIDs[at.GID], at.Unit.Port.UDPPort
	return w, nil
}

// shmWay is the port of the peer that shares memory with us: the one that the
// query names, or one that we offer.
func (k *dgramKeeper) shmWay(sf *carrier.Shm, pair dgramPair, q *resolve.Resolve) (w dgramWay, err error) {
	peer, err := k.shmPeer(sf, pair, q)
	if err != nil {
		return w, err
	}
	p := k.shm[peer.Peer]
	if p == nil || p.gone.Load() {
		k.dropShm()
		if len(k.shm) >= dgramShmPorts {
			return w, fmt.Errorf("%d shm peers with datagrams: %w", len(k.shm), verbs.ErrNoMemory)
		}
		if p, err = k.newPort(sf.Driven, negotiate.CarrierSHM, peer.PD(), verbs.MTU4096.Bytes(), peer); err != nil {
			return w, err
		}
		k.shm[peer.Peer] = p
	}
	w = dgramWay{port: p, offer: p.describe()}
	w.offer.Name, w.offer.Key = peer.Name(), peer.Key()
	return w, nil
}

func (k *dgramKeeper) shmPeer(sf *carrier.Shm, pair dgramPair, q *resolve.Resolve) (*carrier.ShmPeer, error) {
	if q == nil {
		if p := k.met[pair.remote]; p != nil && p.Err() == nil {
			return p, nil
		}
		return sf.PeerFor(pair.remote, false)
	}
	o := resolve.FindUDOffer(q.Offers, negotiate.CarrierSHM)
	if o == nil || q.HostID != k.e.g.hostID || q.GatewayID == k.e.g.id {
		return nil, carrier.ErrNotHere
	}
	if p := sf.Known(o.Key); p != nil {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(k.ctx, keeperPatience)
	defer cancel()
	p, err := sf.Attach(ctx, pair.remote, o.Name, o.Key)
	if err != nil {
		return nil, err
	}
	if len(k.met) >= dgramPeersMost {
		clear(k.met)
	}
	k.met[pair.remote] = p
	return p, nil
}

// dropShm forgets the ports of peers that are down, pending ones that were given
// up among them, of which nobody else tells.
func (k *dgramKeeper) dropShm() {
	for peer, p := range k.shm {
		if p.gone.Load() {
			delete(k.shm, peer)
			continue
		}
		if peer.Err() != nil {
			delete(k.shm, peer)
			k.e.s.Post(func() { k.e.peerGone(p) })
		}
	}
}

// newPort makes a port and gives it to the shard.
func (k *dgramKeeper) newPort(d *carrier.Driven, kind negotiate.CarrierKind, pd verbs.PD, mtu int, peer *carrier.ShmPeer) (*dgramPort, error) {
	if most := int(k.mtu.Load()); most > 0 {
		mtu = min(mtu, most)
	}
	p, err := newDgramPort(k.e, d, kind, pd, mtu)
	if err != nil {
		return nil, err
	}
	if p.shm = peer; peer != nil {
		p.leave = sync.OnceFunc(func() { peer.Fabric.Leave(peer) })
		peer.Fabric.Hold(peer)
	}
	k.e.s.Call(func() {
		k.e.ports[p] = struct{}{}
	})
	return p, nil
}

// peerDown is told by the shm device that a peer has hung up.
func (e *dgramEngine) peerDown(peer *shm.Peer) {
	if e == nil {
		return
	}
	e.s.Post(func() {
		if e.stopped { // closePorts has them
			return
		}
		for p := range e.ports {
			if p.shm != nil && p.shm.Peer == peer {
				e.peerGone(p)
			}
		}
	})
}

// peerGone follows the end of a port's peer. A queue pair that has begun says so
// itself, behind what the peer had sent: perhaps why it went.
func (e *dgramEngine) peerGone(p *dgramPort) {
	if !p.started {
		e.portLost(p)
	}
}

// close ends the goroutine.
func (k *dgramKeeper) close() {
	k.stop()
	k.done.Wait()
}
