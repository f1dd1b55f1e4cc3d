package carrier

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

const (
	// softUnits bounds the devices: the one opened at start, and one for each time that
	// addresses appeared later, until those addresses have left.
	softUnits = 16
	// addrPatience limits how often the host is asked for an address that it did not have;
	// askedLimit bounds how many such addresses are remembered.
	addrPatience = time.Second
	askedLimit   = 256
	// softTimeout and softRetries make the device give up on a silent peer after twice the
	// local ACK timeout (4.096 µs << 16 = 0.27 s) times the number of tries, 3.2 s. Its own
	// timer follows the round trip, so by then a packet has been sent ten times: 2 % loss
	// never ends a flow.
	softTimeout = 16
	softRetries = 5
)

// Soft is the RoCEv2 device in user space, for gateways anywhere. A peer is an address:
// packets are accepted only from there, and the peer's memory has a protection domain of its
// own.
type Soft struct {
	far
	env *Env

	opening sync.Mutex               // held while devices are opened, or must not be; before mu, and never by a shard
	patient time.Time                // until then, wait for the configured port; guarded by opening
	asked   map[netip.Addr]time.Time // when the host was last asked for an address of a flow; likewise

	mu      sync.Mutex  // guards everything below
	shut    bool        // another gateway is taking over: nothing new
	units   []*SoftUnit // open, by place; this and byAddr change only under opening, too
	places  int         // number of places that have had a device
	byAddr  map[netip.Addr]SoftPort
	without string // why addresses have no device; empty: all have one
	peers   map[softKey]*softPeer
	former  map[*softPeer]struct{} // peers of closed devices whose memory is in use
}

// SoftUnit is one device of package soft, on addresses that became known together.
type SoftUnit struct {
	*Driven
	soft  *soft.Device
	place int
	note  string // why it is not on the configured port
	Port  verbs.PortAttr
	users int // queue pairs of flows and datagrams; guarded by Soft.mu
}

// softName returns the name of the device at a place.
func softName(place int) string { return "soft" + strconv.Itoa(place) }

// describe returns what operators see of the device.
func (u *SoftUnit) describe() report.DeviceInfo {
	info := describeDevice(u.soft.Name(), report.DeviceSoft, u.soft.Attr(), u.soft.Port(), u.soft.Stats())
	info.Note = u.note
	return info
}

// SoftPort is a local address: its device, and its index in the GID table.
type SoftPort struct {
	Unit *SoftUnit
	GID  uint8
}

// softKey identifies a peer: queue pairs of two devices cannot share a domain.
type softKey struct {
	unit   *SoftUnit
	remote netip.Addr
}

// softPeer is a peer of one of the devices.
type softPeer struct {
	*farPeer // guarded by Soft.mu
	key      softKey
}

// softLink is the state that Soft keeps per link.
type softLink struct {
	*softPeer
	port SoftPort
	psn  uint32
	pkey uint16    // of packets to this end
	mtu  verbs.MTU // the most the path supports, as far as this end knows
}

// openSoft opens the device on the host's current addresses. If its port is not available, it
// retries later.
func openSoft(env *Env) (Provider, error) {
	if env.Addrs == nil {
		return nil, errNoAddrs
	}
	sf := &Soft{
		far: newFar(), env: env,
		byAddr: map[netip.Addr]SoftPort{}, asked: map[netip.Addr]time.Time{}, peers: map[softKey]*softPeer{},
		former: map[*softPeer]struct{}{},
	}
	changed, deaf := env.adapters().Changed() // subscribe before the first look
	if err := sf.extend(); err != nil {
		sf.without = err.Error()
		env.Log.Warn("soft device left out on addresses, until its port is free", "error", err)
	}
	sf.done.Go(func() { sf.watcher.run(sf.stop, sf.known, sf.forgetIdle) })
	sf.done.Go(func() {
		defer deaf()
		sf.watchPorts(changed)
	})
	return sf, nil
}

// extend opens a device on those addresses of the host that have none. The caller holds
// opening, or has not published sf yet.
func (sf *Soft) extend() error {
	all, err := sf.env.Addrs()
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(all, func(a netip.Addr) bool { _, err := sf.portOf(a); return err == nil })
	if len(fresh) == 0 {
		return sf.left(nil)
	}
	return sf.openUnits(fresh[:min(len(fresh), 256)]) // the most a device takes
}

// PortOf returns the port of a local address. An address that has appeared since the start
// gets a device now.
func (sf *Soft) PortOf(a netip.Addr) (SoftPort, error) {
	if p, err := sf.portOf(a); !errors.Is(err, ErrNoDevice) {
		return p, err
	}
	sf.opening.Lock()
	defer sf.opening.Unlock()
	if p, err := sf.portOf(a); !errors.Is(err, ErrNoDevice) {
		return p, err
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
	p, err := sf.portOf(a)
	if err == nil {
		delete(sf.asked, a)
	}
	return p, err
}

// portOf is PortOf for an address that has a device already.
func (sf *Soft) portOf(a netip.Addr) (SoftPort, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if sf.shut {
		return SoftPort{}, ErrYielded
	}
	if p, ok := sf.byAddr[a]; ok {
		return p, nil
	}
	return SoftPort{}, fmt.Errorf("%v: %w", a, ErrNoDevice)
}

// Kind implements Provider.
func (*Soft) Kind() negotiate.CarrierKind { return negotiate.CarrierSoft }

// Offer implements Provider.
func (sf *Soft) Offer(r Request) (*Link, negotiate.CarrierOffer, error) {
	port, err := sf.PortOf(r.Local)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	l, offer, err := sf.newLink(r, port)
	offer.Mixed = err == nil && sf.env.mayMix(&r, offer.RoCE.UDPPort)
	return l, offer, err
}

// OffersAtOnce implements Prompt: an offer for an address without a device has to open one.
func (sf *Soft) OffersAtOnce(r *Request) bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	_, known := sf.byAddr[r.Local]
	return known || sf.shut
}

// Answer implements Provider. If the address has no device, one is opened on a goroutine.
func (sf *Soft) Answer(r Request, from negotiate.CarrierOffer, _ *negotiate.Proposal, done Answered) {
	if !r.reachable(from) {
		done(nil, negotiate.CarrierOffer{}, ErrTranslated)
		return
	}
	if port, err := sf.portOf(r.Local); !errors.Is(err, ErrNoDevice) {
		sf.answer(r, from, port, err, done)
		return
	}
	owner := r.User.Owner()
	sf.done.Go(func() {
		var port SoftPort
		err := contained(owner, func() (err error) {
			port, err = sf.PortOf(r.Local)
			return err
		})
		r.Shard.Post(func() {
			r.Shard.WorksFor(owner)
			sf.answer(r, from, port, err, done)
		})
	})
}

// answer continues Answer with the port, or with the error why there is none.
func (sf *Soft) answer(r Request, from negotiate.CarrierOffer, port SoftPort, err error, done Answered) {
	if err != nil {
		done(nil, negotiate.CarrierOffer{}, err)
		return
	}
	l, offer, err := sf.newLink(r, port)
	if err != nil {
		done(nil, offer, err)
		return
	}
	to, offer := l.answerTo(from, offer)
	if offer.Mixed && !sf.env.mayMix(&r, offer.RoCE.UDPPort) {
		l.Close()
		done(nil, offer, ErrNotHere)
		return
	}
	l.reply(offer, to, done)
}

// describeSoft returns what the other side must know of a queue pair.
func describeSoft(l *Link) negotiate.CarrierOffer {
	sl := l.peer.(softLink)
	port := &sl.port.Unit.Port
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierSoft, Conn: l.connData(),
		RoCE: negotiate.RoCEEndpoint{
			GID: port.GIDs[sl.port.GID].GID, UDPPort: port.UDPPort, MTU: uint16(sl.mtu.Bytes()),
			QPN: l.QP.Num(), PSN: sl.psn, PKey: sl.pkey,
		},
	}
}

func (sf *Soft) connect(l *Link, to negotiate.CarrierOffer, done func(error)) {
	if !l.of.reachable(to) {
		done(ErrTranslated)
		return
	}
	done(sf.join(l, to))
}

// join connects the queue pair to the peer's.
func (*Soft) join(l *Link, to negotiate.CarrierOffer) error {
	sl := l.peer.(softLink)
	mtu := commonMTU(sl.mtu, to.RoCE.MTU)
	l.probeLen = mtu.Bytes()
	sl.meets(to.Mixed)
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
func (sf *Soft) newLink(r Request, port SoftPort) (*Link, negotiate.CarrierOffer, error) {
	var none negotiate.CarrierOffer
	p, err := sf.peerFor(softKey{unit: port.Unit, remote: r.Remote})
	if err != nil {
		return nil, none, err
	}
	l, err := port.Unit.prepare(r, p.pd, p.arena)
	if err != nil {
		sf.unpaired(port.Unit)
		sf.leave(p)
		return nil, none, fmt.Errorf("soft: %w", err)
	}
	l.medium, l.Kind, l.Lossy = sf, negotiate.CarrierSoft, true
	l.peer = softLink{
		softPeer: p, port: port, psn: soft.RandomPSN(), pkey: soft.RandomPartition(),
		mtu: p.mtuFrom(port.Unit.Port.ActiveMTU),
	}
	return l, describeSoft(l), nil
}

// end implements medium: once the queue pair is gone, no packet reaches the memory.
func (sf *Soft) end(l *Link) {
	l.closePair()
	p := l.peer.(softLink).softPeer
	sf.unpaired(p.key.unit)
	p.unwatch(leg{l})
	if err := l.EP.Release(); err != nil {
		sf.env.Log.Warn("release memory", "flow_id", l.of.ID, "error", err)
	}
	sf.leave(p)
}

// peerFor returns the peer, counting one more flow and its queue pair.
func (sf *Soft) peerFor(k softKey) (*softPeer, error) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if err := sf.usable(k.unit); err != nil {
		return nil, err
	}
	p := sf.peers[k]
	if p == nil {
		far, err := newFarPeer(sf.env, k.unit.Device, k.remote)
		if err != nil {
			return nil, err
		}
		p = &softPeer{farPeer: far, key: k}
		sf.peers[k] = p
	}
	p.users++
	k.unit.users++
	return p, nil
}

// DatagramsAt returns the device for datagrams from a local address.
func (sf *Soft) DatagramsAt(local, _ netip.Addr) (at DatagramDevice, err error) {
	port, err := sf.PortOf(local)
	if err != nil {
		return at, err
	}
	u := port.Unit
	return DatagramDevice{
		Device: u.Device, Port: u.Port, GID: port.GID, Mixed: sf.env.Config.HW.Mixed == config.SwitchOn,
		Hold: func(s *loop.Shard, _ int) (q *loop.Queue, leave func(), err error) {
			sf.mu.Lock()
			defer sf.mu.Unlock()
			if err := sf.usable(u); err != nil {
				return nil, nil, err
			}
			u.users++
			return u.Queue(s), sync.OnceFunc(func() { sf.unpaired(u) }), nil
		},
	}, nil
}

// usable returns why nothing new can be made on a unit. The caller holds mu.
func (sf *Soft) usable(u *SoftUnit) error {
	switch {
	case sf.shut:
		return ErrYielded
	case !slices.Contains(sf.units, u): // closed since PortOf
		return ErrNoDevice
	}
	return nil
}

// unpaired records that a queue pair is gone.
func (sf *Soft) unpaired(u *SoftUnit) {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	u.users--
}

// leave records that a flow of the peer is over.
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

// abandon implements medium. Without its queue pair no packet reaches the memory, so the
// rings are freed at once.
func (sf *Soft) abandon(l *Link) (sent, written func()) {
	p := l.peer.(softLink).softPeer
	p.unwatch(leg{l})
	if err := errors.Join(l.QP.Close(), l.EP.ReleaseRings()); err != nil {
		sf.env.Log.Warn("leave queue pair", "flow_id", l.of.ID, "error", err)
	}
	sf.unpaired(p.key.unit)
	sent = func() {
		if err := l.EP.ReleaseSent(); err != nil {
			sf.env.Log.Warn("release memory", "flow_id", l.of.ID, "error", err)
		}
		sf.leave(p)
	}
	return sent, func() {}
}

// known returns the peers.
func (sf *Soft) known() []*farPeer {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	peers := make([]*farPeer, 0, len(sf.peers))
	for _, p := range sf.peers {
		peers = append(peers, p.farPeer)
	}
	return peers
}

// convicted implements medium. A packet that the queue pair refused may come from any host
// that spoofs the peer's address, so a refusal by itself ends nothing. If the peer did send
// it, it got no answer and leaves the queue pair, which the wire leg reports.
func (*Soft) convicted(l *Link) bool { return soft.Refused(l.QP) }

// Devices implements Provider. It returns the open devices, followed by the places of former
// ones, which keep their counters.
func (sf *Soft) Devices() (list []report.DeviceInfo) {
	sf.mu.Lock() // until the end: a device closed meanwhile must be counted once
	defer sf.mu.Unlock()
	for _, u := range sf.units {
		list = append(list, u.describe())
	}
	places := sf.places
	if sf.without != "" || len(list) == 0 {
		places = max(places, sf.freePlace()+1)
	}
	for place := range places {
		if !sf.isTaken(place) {
			list = append(list, sf.describeFree(place))
		}
	}
	for i := range list {
		sf.past.Sum(&list[i])
	}
	return list
}

// describeFree returns what operators see of a place without a device. The caller holds mu.
func (sf *Soft) describeFree(place int) report.DeviceInfo {
	info := missing(report.DeviceSoft, report.DeviceAbsent, "no address on the devices of the configuration")
	switch {
	case sf.shut:
		info.State, info.Error = report.DeviceDown, ErrYielded.Error()
	case sf.without != "" && place == sf.freePlace():
		info.State, info.Error = report.DeviceFailed, sf.without
	case len(sf.units) == 0:
		info.State = report.DeviceDown
	}
	info.Name = softName(place)
	return info
}

// freePlace returns the first place without a device; isTaken reports whether a place has
// one. The caller holds mu or opening.
func (sf *Soft) freePlace() (place int) {
	for sf.isTaken(place) {
		place++
	}
	return place
}

func (sf *Soft) isTaken(place int) bool {
	return slices.ContainsFunc(sf.units, func(u *SoftUnit) bool { return u.place == place })
}

// Close implements Provider.
func (sf *Soft) Close() error {
	sf.halt()
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
