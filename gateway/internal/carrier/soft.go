package carrier

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

// Soft is the RoCEv2 device in user space, for gateways anywhere. A peer
// is an address: packets are accepted from there only, and its memory has a
// protection domain of its own.
type Soft struct {
	env  *Env
	stop chan struct{}
	kick chan struct{} // a peer is to be asked before the next turn of watch
	done sync.WaitGroup

	mu     sync.Mutex // guards everything below
	shut   bool       // another gateway takes over: nothing new
	units  []*SoftUnit
	byAddr map[netip.Addr]SoftPort
	asked  map[netip.Addr]time.Time // when the host was last asked for an address of a flow
	peers  map[softKey]*softPeer
	former map[*softPeer]struct{} // of devices that were given up: their memory is in use
	pairs  int                    // queue pairs of flows
}

// SoftUnit is one device of package soft, on addresses that became known together.
type SoftUnit struct {
	*Driven
	soft *soft.Device
	name string
	Port verbs.PortAttr
}

// SoftPort is a local address: its device, and its place in the GID table.
type SoftPort struct {
	Unit *SoftUnit
	GID  uint8
}

// softKey names a peer: queue pairs of two devices cannot share a domain.
type softKey struct {
	unit   *SoftUnit
	remote netip.Addr
}

// softPeer is a peer with the memory its links come from.
type softPeer struct {
	key   softKey
	pd    verbs.PD
	arena *rmb.Arena
	warm  loop.Instant // until when a proof holds, zero when a queue pair has failed since

	warmLen atomic.Int64 // the length of the packets of that proof

	users int       // flows; guarded by Soft.mu
	idle  time.Time // since when there are none; the same

	path softPath
	peerKeepalive
}

// softLink is what Soft knows of a link.
type softLink struct {
	*softPeer
	port SoftPort
	psn  uint32
	pkey uint16    // of packets to this end
	mtu  verbs.MTU // the most the path takes as far as this end knows
}

// openSoft opens the device on the addresses the host has now.
func openSoft(env *Env) (Fabric, error) {
	if env.Addrs == nil {
		return nil, errNoAddrs
	}
	sf := &Soft{
		env: env, stop: make(chan struct{}), kick: make(chan struct{}, 1),
		byAddr: map[netip.Addr]SoftPort{}, asked: map[netip.Addr]time.Time{}, peers: map[softKey]*softPeer{},
		former: map[*softPeer]struct{}{},
	}
	if err := sf.extend(); err != nil {
		return nil, err
	}
	sf.done.Go(sf.watch)
	return sf, nil
}

// extend opens a device on those addresses of the host that have none. The caller
// holds mu, or has not published sf yet.
func (sf *Soft) extend() error {
	all, err := sf.env.Addrs()
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
	u := &SoftUnit{name: "soft" + strconv.Itoa(len(sf.units))}
	u.soft, err = soft.Open(soft.Config{
		Name: u.name, Addrs: fresh, UDPPort: sf.env.Config.Soft.UDPPort, Vectors: len(sf.env.Shards),
		MaxMemory: uint64(sf.env.Config.Limits.Memory), Logger: sf.env.Log, Priority: sf.env.Priority,
	})
	if err != nil {
		return err
	}
	if u.Driven, err = drive(sf.env, u.soft); err != nil {
		return err
	}
	u.Port = u.soft.Port()
	sf.units = append(sf.units, u)
	for i, gid := range u.Port.GIDs {
		sf.byAddr[gid.Addr()] = SoftPort{Unit: u, GID: uint8(i)}
	}
	return nil
}

// PortOf returns the port of a local address. One that has appeared since the
// start gets a device now.
func (sf *Soft) PortOf(a netip.Addr) (SoftPort, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.shut {
		return SoftPort{}, ErrYielded
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
			sf.env.Log.Warn("soft device on new addresses", "error", err)
		}
	}
	if p, ok := sf.byAddr[a]; ok {
		delete(sf.asked, a)
		return p, nil
	}
	return SoftPort{}, fmt.Errorf("%v: %w", a, ErrNoDevice)
}

// Kind implements Fabric.
func (*Soft) Kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// Offer implements Fabric.
func (sf *Soft) Offer(r Request) (*Link, negotiate.CarrierOffer, error) { return sf.newLink(r) }

// Met implements Fabric: a peer is an address.
func (*Soft) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// Meet implements Fabric.
func (*Soft) Meet(context.Context, netip.Addr, negotiate.CarrierOffer) error { return nil }

// Answer implements Fabric.
func (sf *Soft) Answer(r Request, from negotiate.CarrierOffer, _ *negotiate.Proposal) (*Link, negotiate.CarrierOffer, error) {
	if !r.reachable(from) {
		return nil, negotiate.CarrierOffer{}, ErrNotHere
	}
	return sf.newLink(r)
}

// reachable: the queue pair must be at the address that the connection itself
// has proved to be the peer's, or we could be made to send to third parties.
func (r *Request) reachable(o negotiate.CarrierOffer) bool {
	return verbs.GID(o.RoCE.GID).Addr() == r.Remote
}

// describeSoft is what the other side must know of a queue pair.
func describeSoft(l *Link) negotiate.CarrierOffer {
	sl := l.peer.(softLink)
	port := &sl.port.Unit.Port
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierSoft, Conn: l.connData(),
		RoCE: negotiate.RoCEEndpoint{
			GID: port.GIDs[sl.port.GID], UDPPort: port.UDPPort, MTU: uint16(sl.mtu.Bytes()),
			QPN: l.QP.Num(), PSN: sl.psn, PKey: sl.pkey,
		},
	}
}

// connect implements path. The path MTU is the smaller of both ends'; the
// proof tells whether the path takes it.
func (*Soft) connect(l *Link, to negotiate.CarrierOffer) error {
	sl := l.peer.(softLink)
	if !l.of.reachable(to) {
		return fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	}
	mtu := sl.mtu
	for mtu > verbs.MTU256 && mtu.Bytes() > int(to.RoCE.MTU) {
		mtu--
	}
	l.probeLen = mtu.Bytes()
	if err := soft.Protect(l.QP, soft.Guard{Own: sl.pkey, Peer: to.RoCE.PKey}); err != nil {
		return err
	}
	return l.attach(verbs.QPAttr{
		DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, SQPSN: sl.psn, PathMTU: mtu,
		AH: verbs.AHAttr{
			DGID: to.RoCE.GID, UDPPort: to.RoCE.UDPPort, SGIDIndex: sl.port.GID, HopLimit: 64, Port: 1,
		},
		MinRNRTimer: 12, Timeout: softTimeout, RetryCnt: softRetries, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
	}, to.Conn)
}

// newLink makes a queue pair in INIT with its memory.
func (sf *Soft) newLink(r Request) (*Link, negotiate.CarrierOffer, error) {
	var none negotiate.CarrierOffer
	port, err := sf.PortOf(r.Local)
	if err != nil {
		return nil, none, err
	}
	p, err := sf.peerFor(softKey{unit: port.Unit, remote: r.Remote})
	if err != nil {
		return nil, none, err
	}
	l, err := port.Unit.prepare(r, p.pd, p.arena)
	if err != nil {
		sf.unpaired()
		sf.leave(p)
		return nil, none, fmt.Errorf("soft: %w", err)
	}
	l.medium, l.Kind, l.Lossy = sf, negotiate.CarrierSoft, true
	l.peer = softLink{
		softPeer: p, port: port, psn: soft.RandomPSN(), pkey: soft.RandomPartition(),
		mtu: p.path.mtu(port.Unit.Port.ActiveMTU, r.Remote, time.Now()),
	}
	return l, describeSoft(l), nil
}

// release implements failing: the queue pair is gone, no packet finds the memory any
// more.
func (sf *Soft) release(l *Link) {
	p := l.peer.(softLink).softPeer
	sf.unpaired()
	p.unwatch(l)
	if err := l.EP.Release(); err != nil {
		sf.env.Log.Warn("release memory", "flow_id", l.of.ID, "error", err)
	}
	sf.leave(p)
}

// peerFor returns the peer for one more flow and its queue pair.
func (sf *Soft) peerFor(k softKey) (*softPeer, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.shut {
		return nil, ErrYielded
	}
	p := sf.peers[k]
	if p == nil {
		pd, err := k.unit.Device.AllocPD()
		if err != nil {
			return nil, fmt.Errorf("protection domain: %w", err)
		}
		p = &softPeer{key: k, pd: pd, arena: sf.env.Pool.IsolatedArenaOf(k.remote.Unmap(), pd), peerKeepalive: newPeerKeepalive()}
		sf.peers[k] = p
	}
	p.users++
	sf.pairs++
	return p, nil
}

// unpaired says that a queue pair of a flow is gone.
func (sf *Soft) unpaired() {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	sf.pairs--
}

// leave says that a flow of the peer is over.
func (sf *Soft) leave(p *softPeer) {
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
		sf.env.Log.Warn("close peer", "peer", p.key.remote, "error", err)
	}
}

// forgetIdle frees what peers without flows hold.
func (sf *Soft) forgetIdle(now time.Time) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for k, p := range sf.peers {
		if p.users == 0 && now.Sub(p.idle) >= idlePeers {
			delete(sf.peers, k)
			if err := p.close(); err != nil {
				sf.env.Log.Warn("close peer", "peer", k.remote, "error", err)
			}
		}
	}
}

func (p *softPeer) close() error { return errors.Join(p.arena.Close(), p.pd.Close()) }

// answered implements path.
func (*Soft) answered(*Link, *negotiate.Accept) bool { return false }

// warm implements path.
func (*Soft) warm(l *Link) bool {
	sl := l.peer.(softLink)
	return time.Now().Before(sl.warm.Load()) && int64(l.probeLen) <= sl.warmLen.Load()
}

// proved implements path.
func (*Soft) proved(l *Link) {
	sl := l.peer.(softLink)
	sl.warmLen.Store(int64(l.probeLen))
	sl.warm.Store(time.Now().Add(warmFor))
}

// unproved implements path.
func (*Soft) unproved(l *Link) { l.peer.(softLink).path.unproved(time.Now()) }

// reason implements failing. After a failure the carrier has to be proved again.
func (sf *Soft) reason(l *Link, err error) negotiate.Reason {
	if _, ok := errors.AsType[*rsocket.ProtocolError](err); ok {
		return negotiate.ReasonProtocolError
	}
	sl := l.peer.(softLink)
	sl.warm.Store(time.Time{})
	var completion *rsocket.CompletionError
	if errors.As(err, &completion) && unanswered(completion.Status) {
		sl.suspect()
		sf.askSoon()
		return negotiate.ReasonPeerDead
	}
	return negotiate.ReasonDeviceFailed
}

// survives implements failing: if the peer's gateway is dead its kernel says so on
// the wire leg.
func (*Soft) survives(_ *Link, err error) bool {
	var protocol *rsocket.ProtocolError
	return !errors.As(err, &protocol)
}

// abandon implements failing. Without its queue pair no packet finds the memory: the
// rings are free at once.
func (sf *Soft) abandon(l *Link) (sent, written func()) {
	p := l.peer.(softLink).softPeer
	p.unwatch(l)
	if err := errors.Join(l.QP.Close(), l.EP.ReleaseRings()); err != nil {
		sf.env.Log.Warn("leave queue pair", "flow_id", l.of.ID, "error", err)
	}
	sf.unpaired()
	sent = func() {
		if err := l.EP.ReleaseSent(); err != nil {
			sf.env.Log.Warn("release memory", "flow_id", l.of.ID, "error", err)
		}
		sf.leave(p)
	}
	return sent, func() {}
}

// convicted implements failing. What a queue pair has refused may be from any host
// that sends with the peer's address, and ends nothing. A peer that did send it has
// had no answer, and leaves the queue pair: the wire leg says so.
func (*Soft) convicted(l *Link) bool { return soft.Refused(l.QP) }

// unanswered: the peer or the path is gone.
func unanswered(s verbs.WCStatus) bool {
	return s == verbs.WCRetryExcErr || s == verbs.WCRNRRetryExcErr
}

// Devices implements Fabric.
func (sf *Soft) Devices() []admin.DeviceInfo {
	sf.mu.Lock()
	units, shut := slices.Clone(sf.units), sf.shut
	sf.mu.Unlock()
	if shut && len(units) == 0 {
		return []admin.DeviceInfo{missing(config.DeviceSoft, admin.DeviceDown, ErrYielded.Error())}
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

// Close implements Fabric.
func (sf *Soft) Close() error {
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
