package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

const (
	// softUnits bounds the devices: the one of the start, and one for each time
	// that addresses have appeared later.
	softUnits = 16
	// addrPatience is how often the host is asked for an address that it did not
	// have, askedLimit how many such addresses are known.
	addrPatience = time.Second
	askedLimit   = 256
	// warmFor is how long a proof holds: a path can stop to carry UDP at any time.
	warmFor = 10 * time.Second
	// idlePeers is how long the domain and memory of a peer without flows are
	// kept.
	idlePeers = time.Minute
	// softTimeout and softRetries: the device gives up a peer that is silent for
	// twice the local ACK timeout (4.096 µs << 16 = 0.27 s) times the tries, 3.2 s.
	// Its own timer follows the round trip, so that a packet has been sent ten
	// times by then: 2 % loss never ends a flow.
	softTimeout = 16
	softRetries = 5
)

// softFabric is the RoCEv2 device in user space, for gateways anywhere. A peer
// is an address: packets are accepted from there only, and its memory has a
// protection domain of its own.
type softFabric struct {
	g    *gateway
	stop chan struct{}
	kick chan struct{} // a peer is to be asked before the next turn of watch
	done sync.WaitGroup

	mu     sync.Mutex // guards everything below
	shut   bool       // another gateway takes over: nothing new
	units  []*softUnit
	byAddr map[netip.Addr]softPort
	asked  map[netip.Addr]time.Time // when the host was last asked for an address of a flow
	peers  map[softKey]*softPeer
	former map[*softPeer]struct{} // of devices that were given up: their memory is in use
	pairs  int                    // queue pairs of flows
}

// softUnit is one device of the fabric.
type softUnit struct {
	*driven
	soft *soft.Device
	name string
	port verbs.PortAttr
}

// softPort is a local address: its device, and its place in the GID table.
type softPort struct {
	unit *softUnit
	gid  uint8
}

// softKey names a peer: queue pairs of two devices cannot share a domain.
type softKey struct {
	unit   *softUnit
	remote netip.Addr
}

// softPeer is a peer with the memory its flows come from.
type softPeer struct {
	key   softKey
	pd    verbs.PD
	arena *rmb.Arena
	warm  instant // until when a proof holds, zero when a queue pair has failed since

	warmLen atomic.Int64 // the length of the packets of that proof

	users int       // flows; guarded by the fabric's mu
	idle  time.Time // since when there are none; the same

	path softPath
	vigil
}

// softCarry is what the fabric knows of a flow.
type softCarry struct {
	*softPeer
	port softPort
	psn  uint32
	pkey uint16    // of packets to this end
	mtu  verbs.MTU // the most the path takes as far as this end knows
}

// errNoAddrs means that the host has no network RDMA could run on.
var errNoAddrs = errors.New("host without network addresses")

// openSoft opens the device on the addresses the host has now.
func openSoft(g *gateway) (fabric, error) {
	if g.addrs == nil {
		return nil, errNoAddrs
	}
	sf := &softFabric{
		g: g, stop: make(chan struct{}), kick: make(chan struct{}, 1),
		byAddr: map[netip.Addr]softPort{}, asked: map[netip.Addr]time.Time{}, peers: map[softKey]*softPeer{},
		former: map[*softPeer]struct{}{},
	}
	if err := sf.extend(); err != nil {
		return nil, err
	}
	sf.done.Go(sf.watch)
	return sf, nil
}

// extend opens a device on those addresses of the host that have none. Nobody
// else has the fabric, or mu is held.
func (sf *softFabric) extend() error {
	all, err := sf.g.addrs()
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(all, func(a netip.Addr) bool { _, ok := sf.byAddr[a]; return ok })
	if len(fresh) == 0 {
		return nil
	}
	if len(sf.units) == softUnits {
		return fmt.Errorf("addresses have changed more than %d times: %w", softUnits-1, verbs.ErrNoMemory)
	}
	fresh = fresh[:min(len(fresh), 256)] // what a device takes
	u := &softUnit{name: "soft" + strconv.Itoa(len(sf.units))}
	u.soft, err = soft.Open(soft.Config{
		Name: u.name, Addrs: fresh, UDPPort: sf.g.cfg.Soft.UDPPort, Vectors: len(sf.g.shards),
		MaxMemory: uint64(sf.g.cfg.Limits.Memory), Logger: sf.g.log, Priority: sf.g.host.Priority,
	})
	if err != nil {
		return err
	}
	if u.driven, err = drive(sf.g, u.soft); err != nil {
		return err
	}
	u.port = u.soft.Port()
	sf.units = append(sf.units, u)
	for i, gid := range u.port.GIDs {
		sf.byAddr[gid.Addr()] = softPort{unit: u, gid: uint8(i)}
	}
	return nil
}

// portOf returns the port of a local address. One that has appeared since the
// start gets a device now.
func (sf *softFabric) portOf(a netip.Addr) (softPort, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.shut {
		return softPort{}, errYielded
	}
	if p, ok := sf.byAddr[a]; ok {
		return p, nil
	}
	if now := time.Now(); now.Sub(sf.asked[a]) >= addrPatience {
		if len(sf.asked) >= askedLimit {
			clear(sf.asked)
		}
		sf.asked[a] = now
		if err := sf.extend(); err != nil {
			sf.g.log.Warn("soft device on new addresses", "error", err)
		}
	}
	if p, ok := sf.byAddr[a]; ok {
		delete(sf.asked, a)
		return p, nil
	}
	return softPort{}, fmt.Errorf("%v: %w", a, errNoDevice)
}

func (*softFabric) kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// offer implements fabric.
func (sf *softFabric) offer(f *flow, s *loop.Shard) (*carry, negotiate.CarrierOffer, error) {
	c, err := sf.newCarry(f, s)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	return c, describeSoft(c), nil
}

// met implements fabric: a peer is an address.
func (*softFabric) met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// meet implements fabric.
func (*softFabric) meet(context.Context, *flow, negotiate.CarrierOffer) error { return nil }

// answer implements fabric.
func (sf *softFabric) answer(f *flow, s *loop.Shard, from negotiate.CarrierOffer, _ *negotiate.Proposal) (*carry, negotiate.CarrierOffer, error) {
	if !reachable(f, from) {
		return nil, negotiate.CarrierOffer{}, errNotHere
	}
	c, err := sf.newCarry(f, s)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	return c, describeSoft(c), nil
}

// reachable: the queue pair must be at the address that the connection itself
// has proved to be the peer's, or we could be made to send to third parties.
func reachable(f *flow, o negotiate.CarrierOffer) bool {
	return verbs.GID(o.RoCE.GID).Addr() == f.tuple.Remote.Addr()
}

// describeSoft is what the other side must know of a queue pair.
func describeSoft(c *carry) negotiate.CarrierOffer {
	sc := c.peer.(softCarry)
	port := &sc.port.unit.port
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierSoft, Conn: c.connData(),
		RoCE: negotiate.RoCEEndpoint{
			GID: port.GIDs[sc.port.gid], UDPPort: port.UDPPort, MTU: uint16(sc.mtu.Bytes()),
			QPN: c.qp.Num(), PSN: sc.psn, PKey: sc.pkey,
		},
	}
}

// connect implements fabric. The path MTU is the smaller of both ends'; the
// proof tells whether the path takes it.
func (*softFabric) connect(c *carry, to negotiate.CarrierOffer) error {
	sc := c.peer.(softCarry)
	if !reachable(c.f, to) {
		return fmt.Errorf("queue pair at another address: %w", errNotHere)
	}
	mtu := sc.mtu
	for mtu > verbs.MTU256 && mtu.Bytes() > int(to.RoCE.MTU) {
		mtu--
	}
	c.probeLen = mtu.Bytes()
	if err := soft.Protect(c.qp, soft.Guard{Own: sc.pkey, Peer: to.RoCE.PKey}); err != nil {
		return err
	}
	return c.attach(verbs.QPAttr{
		DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, SQPSN: sc.psn, PathMTU: mtu,
		AH: verbs.AHAttr{
			DGID: to.RoCE.GID, UDPPort: to.RoCE.UDPPort, SGIDIndex: sc.port.gid, HopLimit: 64, Port: 1,
		},
		MinRNRTimer: 12, Timeout: softTimeout, RetryCnt: softRetries, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
	}, to.Conn)
}

// newCarry makes a queue pair in INIT with its memory.
func (sf *softFabric) newCarry(f *flow, s *loop.Shard) (*carry, error) {
	port, err := sf.portOf(f.tuple.Local.Addr())
	if err != nil {
		return nil, err
	}
	p, err := sf.peerFor(softKey{unit: port.unit, remote: f.tuple.Remote.Addr()})
	if err != nil {
		return nil, err
	}
	c, err := port.unit.prepare(f, s, p.pd, p.arena)
	if err != nil {
		sf.unpaired()
		sf.leave(p)
		return nil, fmt.Errorf("soft: %w", err)
	}
	c.fabric, c.kind, c.lossy = sf, negotiate.CarrierSoft, true
	c.peer = softCarry{
		softPeer: p, port: port, psn: soft.RandomPSN(), pkey: soft.RandomPartition(),
		mtu: p.path.mtu(port.unit.port.ActiveMTU, f.tuple.Remote.Addr(), time.Now()),
	}
	c.settled = func() { // the queue pair is gone: no packet finds the memory any more
		sf.unpaired()
		p.unwatch(c)
		if err := c.ep.Release(); err != nil {
			sf.g.log.Warn("release memory", "flow_id", f.id, "error", err)
		}
		sf.leave(p)
	}
	return c, nil
}

// peerFor returns the peer for one more flow and its queue pair.
func (sf *softFabric) peerFor(k softKey) (*softPeer, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.shut {
		return nil, errYielded
	}
	p := sf.peers[k]
	if p == nil {
		pd, err := k.unit.dev.AllocPD()
		if err != nil {
			return nil, fmt.Errorf("protection domain: %w", err)
		}
		p = &softPeer{key: k, pd: pd, arena: sf.g.pool.IsolatedArenaOf(k.remote.Unmap(), pd), vigil: newVigil()}
		sf.peers[k] = p
	}
	p.users++
	sf.pairs++
	return p, nil
}

// unpaired says that a queue pair of a flow is gone.
func (sf *softFabric) unpaired() {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	sf.pairs--
}

// leave says that a flow of the peer is over.
func (sf *softFabric) leave(p *softPeer) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	p.idle = time.Now()
	if _, ok := sf.former[p]; !ok {
		return
	}
	delete(sf.former, p)
	if err := p.close(); err != nil {
		sf.g.log.Warn("close peer", "peer", p.key.remote, "error", err)
	}
}

// forgetIdle gives back what peers without flows hold.
func (sf *softFabric) forgetIdle(now time.Time) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for k, p := range sf.peers {
		if p.users == 0 && now.Sub(p.idle) >= idlePeers {
			delete(sf.peers, k)
			if err := p.close(); err != nil {
				sf.g.log.Warn("close peer", "peer", k.remote, "error", err)
			}
		}
	}
}

func (p *softPeer) close() error { return errors.Join(p.arena.Close(), p.pd.Close()) }

// answered implements fabric.
func (*softFabric) answered(*flow, *negotiate.Accept) bool { return false }

// warm implements fabric.
func (*softFabric) warm(c *carry) bool {
	sc := c.peer.(softCarry)
	return time.Now().Before(sc.warm.load()) && int64(c.probeLen) <= sc.warmLen.Load()
}

// proved implements fabric.
func (*softFabric) proved(c *carry) {
	sc := c.peer.(softCarry)
	sc.warmLen.Store(int64(c.probeLen))
	sc.warm.store(time.Now().Add(warmFor))
}

// unproved implements fabric.
func (*softFabric) unproved(c *carry) { c.peer.(softCarry).path.unproved(time.Now()) }

// reason implements fabric. After a failure the carrier has to be proved again.
func (sf *softFabric) reason(c *carry, err error) negotiate.Reason {
	if _, ok := errors.AsType[*rsocket.ProtocolError](err); ok {
		return negotiate.ReasonProtocolError
	}
	c.peer.(softCarry).warm.store(time.Time{})
	var completion *rsocket.CompletionError
	if errors.As(err, &completion) && unanswered(completion.Status) {
		c.peer.(softCarry).suspect()
		sf.askSoon()
		return negotiate.ReasonPeerDead
	}
	return negotiate.ReasonDeviceFailed
}

// survives implements fabric: if the peer's gateway is dead its kernel says so on
// the wire leg.
func (*softFabric) survives(_ *carry, err error) bool {
	var protocol *rsocket.ProtocolError
	return !errors.As(err, &protocol)
}

// abandon implements fabric. Without its queue pair no packet finds the memory: the
// rings are free at once.
func (sf *softFabric) abandon(c *carry) (sent, written func()) {
	p := c.peer.(softCarry).softPeer
	p.unwatch(c)
	if err := errors.Join(c.qp.Close(), c.ep.ReleaseRings()); err != nil {
		sf.g.log.Warn("leave queue pair", "flow_id", c.f.id, "error", err)
	}
	sf.unpaired()
	sent = func() {
		if err := c.ep.ReleaseSent(); err != nil {
			sf.g.log.Warn("release memory", "flow_id", c.f.id, "error", err)
		}
		sf.leave(p)
	}
	return sent, func() {}
}

// convicted implements fabric. What a queue pair has refused may be from anybody who sends with the peer's address, and
// ends nothing. A peer that did send it has had no answer, and leaves the queue pair: the wire leg says so.
func (*softFabric) convicted(c *carry) bool { return soft.Refused(c.qp) }

// unanswered: the peer or the path is gone.
func unanswered(s verbs.WCStatus) bool {
	return s == verbs.WCRetryExcErr || s == verbs.WCRNRRetryExcErr
}

// devices implements fabric.
func (sf *softFabric) devices() []admin.DeviceInfo {
	sf.mu.Lock()
	units, shut := slices.Clone(sf.units), sf.shut
	sf.mu.Unlock()
	if shut && len(units) == 0 {
		return []admin.DeviceInfo{missing(config.DeviceSoft, admin.DeviceDown, errYielded.Error())}
	}
	if len(units) == 0 {
		return []admin.DeviceInfo{missing(config.DeviceSoft, admin.DeviceDown, "no address on the devices of the configuration")}
	}
	var list []admin.DeviceInfo
	for _, u := range units {
		list = append(list, describeDevice(u.name, config.DeviceSoft, u.soft, u.soft.Stats()))
	}
	return list
}

// close implements fabric; the shards have stopped.
func (sf *softFabric) close() error {
	close(sf.stop)
	sf.done.Wait()
	sf.mu.Lock()
	defer sf.mu.Unlock()
	var errs []error
	for _, p := range sf.peers {
		errs = append(errs, p.close())
	}
	for p := range sf.former {
		errs = append(errs, p.close())
	}
	for _, u := range sf.units {
		errs = append(errs, u.close())
	}
	return errors.Join(errs...)
}
