package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// shmPeersLimit bounds the peers: each has tables and doorbells, and is looked
	// at by every loop. Beyond it the one that has been without a flow for longest
	// makes room.
	shmPeersLimit = 256
	// pendingLimit bounds the peers nobody has attached to yet.
	pendingLimit = 64
	// elsewhereFor is how long no memory is offered to a server that could not
	// reach it.
	elsewhereFor = time.Minute
	// formerLimit bounds the gateways of one address that were replaced and still
	// serve flows: an upgrade leaves one, and a server that only says so gets no more.
	formerLimit = 4
)

// shmFabric is the shared-memory device for gateways under one kernel. A
// client meets its peers by an offer: memory and key exist before the server
// is known, so that the first PROPOSAL can already name its queue pair. The
// offer is kept per server address and serves every later flow to it.
type shmFabric struct {
	*driven
	shm *shm.Device

	mu     sync.Mutex // guards everything below
	offers map[netip.Addr]*shmPeer
	peers  map[*shm.Peer]*shmPeer
}

// shmPeer is a peer with the memory its flows come from.
type shmPeer struct {
	*shm.Peer
	fabric *shmFabric
	of     netip.Addr // the address that it was met for
	arena  *rmb.Arena
	warm   atomic.Bool // a probe has come back: memory and doorbells work both ways

	users int       // flows and datagram ports; guarded by the fabric's mu
	idle  time.Time // since when there are none; the same
}

// openShm opens the device.
func openShm(g *gateway) (fabric, error) {
	sf := &shmFabric{
		offers: map[netip.Addr]*shmPeer{}, peers: map[*shm.Peer]*shmPeer{},
	}
	dev, err := shm.Open(shm.Config{
		Dir: g.cfg.ShmDir, GatewayID: g.id, Vectors: len(g.shards),
		PeerQuota: uint64(g.cfg.Limits.Memory), MaxPeers: shmPeersLimit, OnPeerDown: sf.peerDown, Logger: g.log,
		PushBytes: 1, // a loop that sleeps begins while the rest of the turn is still made
	})
	if err != nil {
		return nil, err
	}
	sf.shm = dev
	if _, err := dev.Listen(); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	if sf.driven, err = drive(g, dev); err != nil {
		return nil, err
	}
	return sf, nil
}

func (*shmFabric) kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

// offer implements fabric.
func (sf *shmFabric) offer(f *flow, s *loop.Shard) (*carry, negotiate.CarrierOffer, error) {
	p, err := sf.peerFor(f.peer(), true)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	c, err := sf.newCarry(f, s, p)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	return c, sf.describe(c, p), nil
}

// describe is what the other side must know of a queue pair.
func (sf *shmFabric) describe(c *carry, p *shmPeer) negotiate.CarrierOffer {
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierSHM, Conn: c.connData(),
		SHM: negotiate.SHMEndpoint{Name: p.Name(), Key: p.Key(), QPN: c.qp.Num()},
	}
}

// peerFor returns the peer offered to a server address, or makes the offer; with
// hold for a user more, who leaves it.
func (sf *shmFabric) peerFor(a netip.Addr, hold bool) (*shmPeer, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.g.peers.Elsewhere(a, time.Now()) {
		return nil, errNotHere
	}
	p := sf.offers[a]
	if p == nil || p.Err() != nil {
		sf.dropPendingLocked()
		sf.makeRoomLocked(a)
		peer, err := sf.shm.Offer()
		if err != nil {
			return nil, fmt.Errorf("shm offer: %w", err)
		}
		p = sf.adoptLocked(peer, a)
		sf.offers[a] = p
	}
	if hold {
		p.users++
	}
	return p, nil
}

// dropPendingLocked makes room when too many servers have never come. Offers that
// somebody is reading just now stay.
func (sf *shmFabric) dropPendingLocked() {
	pending := 0
	for _, p := range sf.offers {
		if !p.Connected() {
			pending++
		}
	}
	if pending < pendingLimit {
		return
	}
	for _, p := range sf.offers {
		if !p.Connected() && p.users == 0 {
			sf.dropLocked(p)
			return
		}
	}
}

// makeRoomLocked sends a peer away that nobody uses if there are as many as there
// may be.
func (sf *shmFabric) makeRoomLocked(a netip.Addr) {
	if len(sf.peers) < shmPeersLimit {
		return
	}
	if p := sf.longestIdleLocked(func(*shmPeer) bool { return true }); p != nil {
		sf.g.log.Debug("shm peer makes room", "peer", p.String(), "for", a)
		sf.dropLocked(p)
	}
}

func (sf *shmFabric) longestIdleLocked(among func(*shmPeer) bool) (found *shmPeer) {
	for _, p := range sf.peers {
		if p.users == 0 && among(p) && (found == nil || p.idle.Before(found.idle)) {
			found = p
		}
	}
	return found
}

// dropLocked hangs up, or withdraws an offer.
func (sf *shmFabric) dropLocked(p *shmPeer) {
	delete(sf.peers, p.Peer)
	for a, o := range sf.offers {
		if o == p {
			delete(sf.offers, a)
		}
	}
	_ = p.Close()
	p.reap()
}

// admitLocked decides whether an address may have one peer more: it has its share
// of them. One of its own that nobody uses makes room.
func (sf *shmFabric) admitLocked(a netip.Addr) error {
	n := 0
	for _, p := range sf.peers {
		if p.of == a {
			n++
		}
	}
	if n >= sf.g.cfg.Limits.PeerShare.Of(shmPeersLimit) {
		own := sf.longestIdleLocked(func(p *shmPeer) bool { return p.of == a })
		if own == nil {
			sf.g.peers.Refuse(peers.ResourceShmPeers)
			return fmt.Errorf("%d shm peers of %v: %w", n, a, verbs.ErrNoMemory)
		}
		sf.dropLocked(own)
	}
	sf.makeRoomLocked(a)
	return nil
}

func (sf *shmFabric) adoptLocked(peer *shm.Peer, of netip.Addr) *shmPeer {
	p := sf.peers[peer]
	if p == nil {
		p = &shmPeer{Peer: peer, fabric: sf, of: of, arena: sf.g.pool.ArenaOf(of, peer.PD()), idle: time.Now()}
		sf.peers[peer] = p
	}
	return p
}

// adopt enters a peer that has been attached to for an address.
func (sf *shmFabric) adopt(peer *shm.Peer, of netip.Addr, hold bool) *shmPeer {
	sf.mu.Lock()
	p := sf.adoptLocked(peer, of)
	if hold {
		p.users++
	}
	sf.mu.Unlock()
	if peer.Err() != nil {
		sf.peerDown(peer) // it went before it was entered
	}
	return p
}

// countPeers adds the peers of each address.
func (sf *shmFabric) countPeers(to map[netip.Addr]admin.PeerUse) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, p := range sf.peers {
		u := to[p.of]
		u.ShmPeers++
		to[p.of] = u
	}
}

// hold is for one user more, leave for one less.
func (sf *shmFabric) hold(p *shmPeer) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	p.users++
}

func (sf *shmFabric) leave(p *shmPeer) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if p.users--; p.users == 0 {
		p.idle = time.Now()
	}
}

// known returns the live peer of a key, whichever side made the offer, or nil.
func (sf *shmFabric) known(key [16]byte) *shmPeer {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, p := range sf.peers {
		if p.Key() == key && p.Err() == nil {
			return p
		}
	}
	return nil
}

// met implements fabric: gateways under other kernels need not be met.
func (sf *shmFabric) met(from negotiate.CarrierOffer, p *negotiate.Proposal) bool {
	return p.HostID != sf.g.hostID || sf.shm.Attached(from.SHM.Name, from.SHM.Key) != nil
}

// meet implements fabric. The peer is known from then on, whatever becomes of the
// flow.
func (sf *shmFabric) meet(ctx context.Context, f *flow, from negotiate.CarrierOffer) error {
	_, err := sf.attach(ctx, f.peer(), from.SHM.Name, from.SHM.Key)
	return err
}

// attach becomes the peer of an offer that was made to an address.
func (sf *shmFabric) attach(ctx context.Context, of netip.Addr, name string, key [16]byte) (*shmPeer, error) {
	sf.mu.Lock()
	err := sf.admitLocked(of)
	sf.mu.Unlock()
	if err != nil {
		return nil, err
	}
	peer, err := sf.shm.Attach(ctx, name, key)
	if err != nil {
		return nil, fmt.Errorf("shm attach: %w", err)
	}
	return sf.adopt(peer, of, false), nil
}

// answer implements fabric.
func (sf *shmFabric) answer(f *flow, s *loop.Shard, from negotiate.CarrierOffer, p *negotiate.Proposal) (*carry, negotiate.CarrierOffer, error) {
	if p.HostID != sf.g.hostID {
		return nil, negotiate.CarrierOffer{}, errNotHere
	}
	peer := sf.shm.Attached(from.SHM.Name, from.SHM.Key)
	if peer == nil {
		return nil, negotiate.CarrierOffer{}, fmt.Errorf("shm peer has gone: %w", net.ErrClosed)
	}
	sp := sf.adopt(peer, f.peer(), true)
	c, err := sf.newCarry(f, s, sp)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	return c, sf.describe(c, sp), nil
}

// connect implements fabric.
func (*shmFabric) connect(c *carry, to negotiate.CarrierOffer) error {
	return c.attach(verbs.ConnectAttr(to.SHM.QPN), to.Conn)
}

// answered implements fabric. The offer to an address is of the gateway that has
// attached: another one that is there now refuses it, and is made an offer of its
// own. A server that carries otherwise and did not attach is not offered memory for
// a while.
func (sf *shmFabric) answered(f *flow, a *negotiate.Accept) (outdated bool) {
	c := f.carryOf(negotiate.CarrierSHM)
	if c == nil || a != nil && negotiate.FindCarrier(a.Carriers, negotiate.CarrierSHM) != nil {
		return false
	}
	p := c.peer.(*shmPeer)
	gw := p.Gateway() // zero: nobody has attached
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if gw != [16]byte{} && (a == nil || a.GatewayID != gw) {
		sf.replacedLocked(p)
		return true
	}
	if a == nil {
		return false
	}
	sf.g.peers.Unreachable(f.peer(), time.Now(), elsewhereFor)
	return false
}

// replacedLocked forgets the offer that p has taken; p goes on to serve its flows.
func (sf *shmFabric) replacedLocked(p *shmPeer) {
	n := 0
	for _, o := range sf.peers {
		if o.of == p.of {
			n++
		}
	}
	if sf.offers[p.of] == p && n <= formerLimit {
		delete(sf.offers, p.of)
	}
}

// warm implements fabric.
func (*shmFabric) warm(c *carry) bool { return c.peer.(*shmPeer).warm.Load() }

// proved implements fabric.
func (*shmFabric) proved(c *carry) { c.peer.(*shmPeer).warm.Store(true) }

// unproved implements fabric: there is no path.
func (*shmFabric) unproved(*carry) {}

// newCarry makes a queue pair in INIT with its memory. The caller holds the peer;
// from here on the queue pair does.
func (sf *shmFabric) newCarry(f *flow, s *loop.Shard, p *shmPeer) (*carry, error) {
	c, err := sf.prepare(f, s, p.PD(), p.arena)
	if err != nil {
		sf.leave(p)
		p.reap() // what it had of the arena may have been the last
		return nil, fmt.Errorf("shm: %w", err)
	}
	c.fabric, c.peer, c.kind = sf, p, negotiate.CarrierSHM
	c.settled, c.reap = func() { sf.release(p, c.ep) }, p.reap
	return c, nil
}

// release frees the memory of an endpoint whose peer may not have noticed yet
// that it is over: after every loop of the peer has passed a turn.
func (sf *shmFabric) release(p *shmPeer, ep *rsocket.Endpoint) {
	p.AfterGrace(func() {
		_ = ep.Release()
		sf.leave(p)
		p.reap()
	})
}

// reap gives the memory of a peer that is down back to the pool and to the
// kernel. Until the last flow has released its part it does nothing.
func (p *shmPeer) reap() {
	if p.Err() != nil {
		_ = p.arena.Close()
	}
}

// peerDown is called by the device when a peer has hung up: its gateway is
// dead, and every flow it carried ends now.
func (sf *shmFabric) peerDown(peer *shm.Peer) {
	sf.mu.Lock()
	sp := sf.peers[peer]
	delete(sf.peers, peer)
	for a, p := range sf.offers {
		if p.Peer == peer {
			delete(sf.offers, a)
		}
	}
	sf.mu.Unlock()
	sf.g.dgrams.Load().PeerDown(peer)
	if sp != nil {
		sp.reap()
	}
}

// reason implements fabric. After a failure the carrier has to be proved again.
func (*shmFabric) reason(c *carry, err error) negotiate.Reason {
	var protocol *rsocket.ProtocolError
	c.peer.(*shmPeer).warm.Store(false)
	switch {
	case errors.As(err, &protocol), errors.Is(c.peer.(*shmPeer).Err(), shm.ErrViolation):
		return negotiate.ReasonProtocolError
	case errors.Is(c.peer.(*shmPeer).Err(), shm.ErrDied):
		return negotiate.ReasonPeerDead
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// survives implements fabric: the peer's gateway is dead if its process is, and a
// peer that broke the rules of shared memory is no peer any more.
func (*shmFabric) survives(c *carry, err error) bool {
	var protocol *rsocket.ProtocolError
	down := c.peer.(*shmPeer).Err()
	return !errors.As(err, &protocol) && !errors.Is(down, shm.ErrDied) && !errors.Is(down, shm.ErrViolation)
}

// convicted implements fabric: who breaks the protocol here is heard of at once.
func (*shmFabric) convicted(*carry) bool { return false }

// abandon implements fabric. The queue pair keeps the peer's ring mapped, which has
// the tail, and the own ring stays as it is until the peer has taken its own tail
// out of it: neither can be revoked.
func (sf *shmFabric) abandon(c *carry) (sent, written func()) {
	p := c.peer.(*shmPeer)
	_ = c.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
	var halves atomic.Int32
	half := func() {
		if halves.Add(1) == 2 {
			sf.leave(p)
		}
		p.reap()
	}
	sent = func() {
		c.s.Post(func() {
			c.s.WorksFor(c.f)
			if err := c.qp.Close(); err != nil {
				sf.g.log.Warn("close queue pair", "flow_id", c.f.id, "error", err)
			}
			half()
		})
	}
	return sent, sync.OnceFunc(func() {
		p.AfterGrace(func() {
			_ = c.ep.ReleaseRings()
			half()
		})
	})
}

// devices implements fabric.
func (sf *shmFabric) devices() []admin.DeviceInfo {
	return []admin.DeviceInfo{describeDevice("shm0", config.DeviceShm, sf.shm, sf.shm.Stats())}
}

// close implements fabric; the shards have stopped.
func (sf *shmFabric) close() error {
	err := sf.driven.close()
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, p := range sf.peers { // offers that nobody took
		p.reap()
	}
	return err
}
