package datagram

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// TestDatagramWayLostOneWay: what a peer sends, and short packets that reach it, do
// not hide that what is sent to it is lost, all of it or what is long.
func TestDatagramWayLostOneWay(t *testing.T) {
	for name, spoil := range map[string]func(l *link){
		"all":  func(l *link) { l.qkey ^= 1 },
		"long": func(l *link) { l.mtu = 2048 },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, kind report.DeviceKind) {
				h := newHosts(t, kind)
				h.narrow(1)
				h.meet()
				there, back := h.ends(0, 4000, 53), h.ends(1, 53, 4000)
				h.pass(0, there, []byte("there"))
				h.pass(1, back, []byte("back"))
				e := h.engine(0)
				e.s.Call(func() { spoil(e.peers[pairAddrs[1]].cur) })
				for begun := time.Now(); h.d[0].Peer(pairAddrs[1], 0).Capable; time.Sleep(5 * time.Millisecond) {
					require.Less(t, time.Since(begun), patience)
					h.d[0].steer(t, there, []byte("there"))
					h.d[1].steer(t, back, []byte("back"))
				}
				require.Equal(t, negotiate.ReasonPeerDead, h.native(0, 0))
				if name == "long" { // the other way is as good as ever
					require.True(t, h.d[1].Peer(pairAddrs[0], 0).Capable)
				}
			})
		})
	}
}

// TestDatagramsLiveOn: of a peer that is well, at every pace.
func TestDatagramsLiveOn(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		for i, gap := range []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1100 * time.Millisecond} {
			for try := 0; !livesOn(t, kind, gap, i%2 == 0); try++ {
				require.Less(t, try, lateTries)
			}
		}
	})
}

// livesOn tells whether all datagrams of a pace were carried. One may be given back if a host
// has stood still for long.
func livesOn(t *testing.T, kind report.DeviceKind, gap time.Duration, answers bool) bool {
	h := newHosts(t, kind)
	h.meet()
	longest, carried := h.stoodStill(), true
	for begun := time.Now(); carried && time.Since(begun) < 1500*time.Millisecond; time.Sleep(gap) {
		carried = h.passes(t, 0, h.ends(0, 4000, 53), []byte("there")) &&
			(!answers || h.passes(t, 1, h.ends(1, 53, 4000), []byte("back")))
	}
	carried = carried && h.d[0].Peer(pairAddrs[1], 0).Capable
	if stood := longest(); !carried {
		require.Greater(t, stood, 3*tickEvery, "a peer that is well is given up")
		return false
	}
	require.Zero(t, h.stats(0).Returned)
	return true
}

// TestDatagramTupleForgotten: a tuple that the programs lost, or whose peer is reached
// by another device now, is opened again while its datagrams come.
func TestDatagramTupleForgotten(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("x"))
	key := h.tuple(1, ends)
	change := func(fn func(d *fakeSteering)) {
		h.d[1].Lock()
		defer h.d[1].Unlock()
		fn(h.d[1])
	}
	at := func() (i int) {
		change(func(d *fakeSteering) { i = d.Open[key] })
		return i
	}
	goesOn := func(ifindex int) {
		t.Helper()
		for begun := time.Now(); at() != ifindex; time.Sleep(20 * time.Millisecond) {
			h.pass(0, ends, []byte("x"))
			require.Less(t, time.Since(begun), patience)
		}
	}
	change(func(d *fakeSteering) { delete(d.Open, key) })
	goesOn(7)
	change(func(d *fakeSteering) { d.Ifindex = 8 })
	goesOn(8)
}

// TestDatagramsThatDoNotGetIn: a peer that is reached by a device without programs is
// told to send natively, and does not get as far as that when it is known before.
func TestDatagramsThatDoNotGetIn(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		e := h.engine(1)
		e.s.Call(func() { clear(e.routes) })
		h.d[1].Lock()
		h.d[1].NoRoute = ebpf.ErrNoDevice
		h.d[1].Unlock()
		h.d[0].steer(t, h.ends(0, 4000, 53), []byte("lost"))
		require.Equal(t, negotiate.ReasonAddress, h.native(0, 0))
		h.d[0].steer(t, h.ends(0, 4000, 53), []byte("native"))
		require.Equal(t, "native", string(h.d[0].receive(t).payload), "given back")

		h.stop(0)
		h.forget(0)
		h.start(0)
		h.want(0)
		require.Equal(t, negotiate.ReasonAddress, h.native(0, 0))
		require.Zero(t, h.stats(0).Sent[kind.Carrier()])
	})
}

// TestDatagramAddressLeavesTheHost: a flow whose address has no way any more ends after a few checks, and its peer sends
// natively from there on. One that comes back sooner stays.
func TestDatagramAddressLeavesTheHost(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("x"))
	e := h.engine(1)
	check := func(noRoute error) { // the next datagram makes sure
		h.d[1].Lock()
		h.d[1].NoRoute = noRoute
		h.d[1].Unlock()
		e.s.Call(func() {
			clear(e.routes)
			e.flows.find(h.tuple(1, ends)).checked = time.Time{}
		})
	}
	for range 2 {
		for range lostChecks - 1 {
			check(ebpf.ErrNoDevice)
			h.pass(0, ends, []byte("the address may come back"))
		}
		check(nil)
		h.pass(0, ends, []byte("it does"))
	}
	for range lostChecks - 1 {
		check(ebpf.ErrNoDevice)
		h.pass(0, ends, []byte("it may again"))
	}
	require.True(t, h.d[0].Peer(pairAddrs[1], 0).Capable)
	check(ebpf.ErrNoDevice)
	h.d[0].steer(t, ends, []byte("lost"))
	require.Equal(t, negotiate.ReasonAddress, h.native(0, 0))
	require.EqualValues(t, 1, h.stats(1).Dropped[report.DropQueueFull], "behind the turn that has told the peer")
	require.Empty(t, h.g[1].flows())
	require.Equal(t, "address", h.g[1].ended()[0].Reason)
	h.d[0].steer(t, ends, []byte("native"))
	require.Equal(t, "native", string(h.d[0].receive(t).payload), "given back")
}

// lose ends the ports of a kind at host i as a failure of the device does.
func (h *hosts) lose(i int, kind negotiate.CarrierKind) {
	e := h.engine(i)
	e.s.Call(func() {
		for p := range e.ports {
			if p.kind == kind {
				e.portLost(p)
			}
		}
	})
}

// TestDatagramPortOfAnotherCarrierLost: a carrier whose proof once failed takes nothing
// with it that goes by another one.
func TestDatagramPortOfAnotherCarrierLost(t *testing.T) {
	h := newHosts(t, report.DeviceShm, report.DeviceSoft)
	h.meet()
	e := h.engine(0)
	others := 0
	e.s.Call(func() {
		p := e.peers[pairAddrs[1]]
		for _, l := range p.links {
			if l.port.kind == negotiate.CarrierSoft {
				assert.NotSame(t, p.cur, l)
				l.proof = 1 // long ago, in vain
				others++
			}
		}
	})
	require.NotZero(t, others)
	h.lose(0, negotiate.CarrierSoft)
	h.pass(0, h.ends(0, 4000, 53), []byte("carried"))
	require.True(t, h.d[0].Peer(pairAddrs[1], 0).Capable)
}

// TestDatagramPortLostWhileOff: what is gone when gateways are switched on again is
// not waited for.
func TestDatagramPortLostWhileOff(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	h.g[0].setOff(true)
	require.Equal(t, negotiate.ReasonOff, h.native(0, 0))
	h.lose(0, negotiate.CarrierSoft)
	h.g[0].setOff(false)
	h.want(0)
	require.Equal(t, negotiate.ReasonPeerDead, h.native(0, 0))
}

// TestDatagramProbeOfAllAddresses: where memory is shared a probe does not say for
// which pair of addresses it is; what its sender then sends is taken by each.
func TestDatagramProbeOfAllAddresses(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.meet()
	e := h.engine(1)
	var links []*link
	e.s.Call(func() {
		cur := e.peers[pairAddrs[0]].cur
		o := resolve.UDOffer{Kind: negotiate.CarrierSHM, MTU: 1024, QPN: cur.qpn, QKey: cur.qkey}
		for i := range byte(5) {
			pair := addrPair{pairAddrs[1], netip.AddrFrom4([4]byte{127, 77, 9, i})}
			l, err := e.link(pair, &way{port: cur.port}, &o, cur.gateway, false)
			assert.NoError(t, err)
			assert.False(t, l.valid)
			links = append(links, l)
		}
	})
	h.send(0, func(_ *link, slot []byte) (int, *uint32) {
		imm := controlImm(controlProbe)
		return copy(slot, make([]byte, 64)), &imm
	})
	require.Eventually(t, func() (valid bool) {
		e.s.Call(func() { valid = !slices.ContainsFunc(links, func(l *link) bool { return !l.valid }) })
		return valid
	}, 30*time.Second, time.Millisecond)
}

// failing is a network on whose first queue pair only a few receives can be posted.
type failing struct {
	network
	pd             verbs.PD // of that queue pair
	posted, closed atomic.Int32
}

func (f *failing) DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error) {
	d, err := f.network.DatagramsAt(local, remote)
	if err == nil && f.pd == nil {
		f.pd, err = d.AllocPD()
		d.Device = failingDevice{d.Device, f}
	}
	return d, err
}

type failingDevice struct {
	verbs.Device
	f *failing
}

func (d failingDevice) AllocPD() (verbs.PD, error) { return failingPD{d.f.pd, d.f}, nil }

type failingPD struct {
	verbs.PD
	f *failing
}

func (p failingPD) CreateQP(a *verbs.QPInitAttr) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(a)
	return failingQP{qp, p.f}, err
}

type failingQP struct {
	verbs.QP
	f *failing
}

func (q failingQP) PostRecv(wr *verbs.RecvWR) error {
	if q.f.posted.Add(1) > 7 {
		return verbs.ErrNoMemory
	}
	return q.QP.PostRecv(wr)
}

func (q failingQP) Close() error {
	q.f.closed.Add(1)
	return q.QP.Close()
}

// TestDatagramPortThatDoesNotStart: it is given up as a whole, and another one takes its
// place.
func TestDatagramPortThatDoesNotStart(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	f := &failing{}
	h.providers(0, func(list []Provider) {
		f.network = list[0].(network)
		list[0] = f
	})
	h.want(0)
	require.Equal(t, negotiate.ReasonCarrierUnreachable, h.native(0, 0))
	require.Eventually(t, func() bool { return f.closed.Load() == 1 }, patience, time.Millisecond)
	require.True(t, h.way(0).is(portActive))
	require.EqualValues(t, 1, f.closed.Load())
}

// way returns the first port for host i's peer, made if there is none.
func (h *hosts) way(i int) *port {
	h.t.Helper()
	made := make(chan *port, 1)
	require.True(h.t, h.engine(i).keeper.ways(addrPair{pairAddrs[i], pairAddrs[1-i]}, nil, func(list []way) {
		_ = list[0].port.start()
		made <- list[0].port
	}))
	return <-made
}

// TestDatagramsLeaveADevice: its queue pair is closed when LeaveDevice returns, and the
// next use makes another.
func TestDatagramsLeaveADevice(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	e := h.engine(0)
	p := h.way(0)
	require.True(t, p.is(portActive))
	d := &Engine{core: e}
	d.LeaveDevice(nil)
	require.True(t, p.is(portActive), "another device")
	begun := time.Now()
	d.LeaveDevice(p.dev)
	require.True(t, p.is(portGone))
	if time.Since(begun) >= leaveMost { // it waits no longer, on however busy a machine
		<-p.closed
	}
	e.s.Call(func() { assert.NotContains(t, e.ports, p) })
	require.NotSame(t, p, h.way(0))
}

// TestLostPortClosesBesideTheShard: an adapter that has failed may keep the calls that end a port. Datagrams go on by
// another port meanwhile, and what the queue pair may still send from is nothing else's.
func TestLostPortClosesBesideTheShard(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	h.forget(0)
	h.meet()
	e, ends := h.engine(0), h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("before"))
	var p *port
	e.s.Call(func() {
		p = e.peers[pairAddrs[1]].cur.port
		for {
			slot, ok := e.out.take()
			if !ok {
				return
			}
			e.out.lend(slot, p, 1) // under way for ever
		}
	})
	release := a.hold("QP.Close")
	handles := a.hold("AH.Close")
	d := &Engine{core: e}
	d.LeaveDevice(p.dev) // returns although the calls do not
	require.True(t, p.is(portGone))
	require.Eventually(t, func() bool { return a.begun("AH.Close") == 1 }, patience, time.Millisecond)
	a.turns()
	another := h.way(0)
	require.True(t, another.is(portActive))
	require.NotSame(t, p, another)
	h.d[0].steer(t, ends, []byte("native"))
	require.Equal(t, "native", string(h.d[0].receive(t).payload))
	handles()
	require.Eventually(t, func() bool { return a.begun("QP.Close") == 1 }, patience, time.Millisecond)
	require.Zero(t, a.begun("MR.Close"), "the queue pair may use the memory")
	e.s.Call(func() {
		assert.Empty(t, e.out.free, "the queue pair may send from them")
		assert.Contains(t, e.ports, p)
		assert.NotContains(t, p.queue.Members, p.qp.Num())
	})
	release()
	<-p.closed
	require.Equal(t, 2, a.over("MR.Close"))
	e.s.Call(func() {
		assert.Len(t, e.out.free, slotCount)
		assert.NotContains(t, e.ports, p)
	})
	require.True(t, another.is(portActive))
}

// TestLinksForgottenBesideTheShard: an adapter may take its time for the end of an address handle, too.
func TestLinksForgottenBesideTheShard(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	h.forget(0)
	h.meet()
	release := a.hold("AH.Close")
	e := h.engine(0)
	e.s.Post(func() { e.unlink(e.peers[pairAddrs[1]].cur) })
	a.turns()
	require.Eventually(t, func() bool { return a.begun("AH.Close") == 1 }, patience, time.Millisecond)
	release()
}

// TestLeaveWithoutAdapter: an adapter that hangs, while it makes a queue pair or closes one, keeps no engine from ending.
func TestLeaveWithoutAdapter(t *testing.T) {
	for _, hangs := range []string{"CreateQP", "PD.Close"} {
		h := newHosts(t, report.DeviceSoft)
		a := h.adapt(0)
		h.start(0)
		find := func(then func([]way)) {
			require.True(t, h.engine(0).keeper.ways(addrPair{pairAddrs[0], pairAddrs[1]}, nil, then))
		}
		if hangs == "PD.Close" {
			found := make(chan []way, 1)
			find(func(list []way) { found <- list })
			require.Len(t, <-found, 1)
		}
		release := a.hold(hangs)
		if hangs == "CreateQP" {
			find(func([]way) {})
			require.Eventually(t, func() bool { return a.begun(hangs) == 1 }, patience, time.Millisecond)
		}
		(&Engine{core: h.engine(0)}).Leave()
		require.Eventually(t, func() bool { return a.begun(hangs) == 1 }, patience, time.Millisecond)
		release()
	}
}

// TestPortsHoldTheirDevice: from before anything is made on it until nothing is left, whatever becomes of the port.
func TestPortsHoldTheirDevice(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	pair := addrPair{pairAddrs[0], pairAddrs[1]}
	find := func() []way {
		found := make(chan []way, 1)
		require.True(t, h.engine(0).keeper.ways(pair, nil, func(list []way) { found <- list }))
		return <-found
	}
	for i, name := range []string{"Hold", "AllocPD", "CreateQP"} { // the adapter goes, or has no room
		a.fail(name, verbs.ErrNoMemory)
		require.Empty(t, find())
		a.fail(name, nil)
		require.Equal(t, i+1, a.over("Hold"))
		require.Equal(t, i, a.over("leave"), "%s: what is not held is not left", name)
	}
	require.Len(t, find(), 1)
	require.Len(t, find(), 1)
	require.Equal(t, 4, a.over("Hold"), "once for a port")
	p := h.way(0)
	closing := a.hold("PD.Close")
	(&Engine{core: h.engine(0)}).LeaveDevice(p.dev)
	require.Eventually(t, func() bool { return a.begun("PD.Close") == 2 }, patience, time.Millisecond)
	require.Equal(t, 2, a.begun("leave"))
	closing()
	<-p.closed
	require.Equal(t, 3, a.begun("leave"))
}

// lateNetwork is a network that gets its address late.
type lateNetwork struct {
	network
	there *atomic.Bool
}

func (n lateNetwork) DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error) {
	if !n.there.Load() {
		return carrier.DatagramDevice{}, carrier.ErrNotHere
	}
	return n.network.DatagramsAt(local, remote)
}

// TestDeviceThatComesLate: that there was no way to a peer is not remembered for long, and
// does not count as a query.
func TestDeviceThatComesLate(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.stop(0)
	var there atomic.Bool
	h.edit = func(_ int, list []Provider) { list[0] = lateNetwork{list[0].(network), &there} }
	h.start(0)
	begun := time.Now()
	h.want(0)
	require.Eventually(t, func() bool { return h.d[0].Peer(pairAddrs[1], 0).Reason != 0 }, patience, time.Millisecond)
	require.Zero(t, h.stats(0).Resolution.Queries)
	there.Store(true)
	require.Eventually(t, func() bool {
		h.want(0)
		return h.d[0].Peer(pairAddrs[1], 0).Capable
	}, patience, 10*time.Millisecond)
	if queries := h.stats(0).Resolution.Queries; time.Since(begun) < 2*time.Second { // or it is sent again, to a host that is late
		require.EqualValues(t, 1, queries)
	}
}

// TestDatagramsHoldSoft: a soft device on which datagrams have a queue pair is in use until they
// leave it.
func TestDatagramsHoldSoft(t *testing.T) {
	own := twohosts.Addr(1)
	log := slog.New(slog.DiscardHandler)
	cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceSoft}}
	cfg.Soft.UDPPort = twohosts.FreePort(t)
	cfg = cfg.WithDefaults()
	s, err := loop.New(0, log)
	require.NoError(t, err)
	var leave func()
	left := 0
	list, absent := carrier.Open(&carrier.Env{
		Config: cfg, Log: log, Shards: []*loop.Shard{s},
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{own}, nil },
		Vacate: func(negotiate.CarrierKind, func(*carrier.Link) bool, bool) {
			left++
			leave()
		},
	})
	require.Empty(t, absent)
	s.Start()
	t.Cleanup(func() {
		s.Halt()
		s.Detach()
		require.NoError(t, list[0].Close())
		s.CloseFDs()
	})
	dev, err := Providers(list)[0].(network).DatagramsAt(own, twohosts.Addr(2))
	require.NoError(t, err)
	_, leave, err = dev.Hold(s, queueNeed)
	require.NoError(t, err)
	require.NoError(t, list[0].(carrier.Exclusive).GiveUp())
	require.Equal(t, 1, left)
	_, _, err = dev.Hold(s, queueNeed)
	require.ErrorIs(t, err, carrier.ErrYielded)
}
