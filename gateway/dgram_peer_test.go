package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/verbs"
)

func (h *dgramHosts) engine(i int) *dgramEngine { return h.g[i].dgrams.Load() }

// narrow makes the packets of host i short; no port is there yet.
func (h *dgramHosts) narrow(i int) {
	for j, fb := range h.engine(i).cfg.Fabrics {
		switch fb := fb.(type) {
		case datagram.Memory:
			h.engine(i).cfg.Fabrics[j] = narrowMemory{fb}
		case datagram.Network:
			h.engine(i).cfg.Fabrics[j] = narrowNetwork{fb}
		}
	}
}

// narrowMemory and narrowNetwork are fabrics of short packets.
type narrowMemory struct{ datagram.Memory }

func (n narrowMemory) SharedDevice() datagram.Device {
	d := n.Memory.SharedDevice()
	d.Port.ActiveMTU = verbs.MTU1024
	return d
}

type narrowNetwork struct{ datagram.Network }

func (n narrowNetwork) DeviceAt(local netip.Addr) (datagram.Device, error) {
	d, err := n.Network.DeviceAt(local)
	d.Port.ActiveMTU = verbs.MTU1024
	return d, err
}

// tuple is that of a datagram at host i.
func (h *dgramHosts) tuple(i int, e dgramEnds) ebpf.Tuple {
	if e.src.Addr() == pairAddrs[i] {
		return ebpf.Tuple{Local: e.src, Remote: e.dst}
	}
	return ebpf.Tuple{Local: e.dst, Remote: e.src}
}

// crash ends a gateway without a word.
func (h *dgramHosts) crash(i int) {
	h.t.Helper()
	e := h.engine(i)
	e.s.Call(func() { e.stopped = true })
	h.stop(i)
}

// native waits until the programs of host i leave its peer alone.
func (h *dgramHosts) native(i int, port uint16) negotiate.Reason {
	h.t.Helper()
	var p ebpf.DatagramPeer
	require.Eventually(h.t, func() bool {
		p = h.d[i].peer(pairAddrs[1-i], port)
		return !p.Capable && p.Reason != 0
	}, 30*time.Second, time.Millisecond)
	return negotiate.Reason(p.Reason)
}

// TestDatagramPeerDies: without a word; what is sent then goes natively within
// 1.5 s on a network, at once where memory is shared.
func TestDatagramPeerDies(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("alive"))
		h.crash(1)
		begun := time.Now()
		for h.d[0].peer(pairAddrs[1], 0).Capable {
			h.d[0].steer(t, ends, []byte("anybody"))
			time.Sleep(10 * time.Millisecond)
			require.Less(t, time.Since(begun), patience)
		}
		t.Logf("native after %v", time.Since(begun))
		require.Equal(t, negotiate.ReasonPeerDead, h.native(0, 0))
		for h.d[0].next(0) != nil { // given back in between
		}
		h.d[0].steer(t, ends, []byte("native"))
		require.Equal(t, "native", string(h.d[0].receive(t).payload), "given back")
		require.Empty(t, h.g[0].Conns(admin.ConnQuery{}))
		past := h.g[0].Conns(admin.ConnQuery{Closed: true})
		require.Equal(t, admin.EndNative, past[0].End)
		require.Equal(t, "peer_dead", past[0].Reason)
		// The programs count what they left native, of both protocols together.
		h.g[0].onEvent(ebpf.Event{Kind: ebpf.EventNative, Tuple: h.tuple(0, ends), Proto: ebpf.ProtoUDP, Reason: uint8(negotiate.ReasonPeerDead)})
		steer := h.g[0].steer.(*fakeSteering)
		steer.mu.Lock()
		steer.counters.Native[ebpf.SideClient] = map[uint8]uint64{uint8(negotiate.ReasonPeerDead): 3}
		steer.mu.Unlock()
		snap := h.g[0].Snapshot()
		require.Equal(t, map[string]uint64{"peer_dead": 1}, snap.UDP.Native)
		require.Equal(t, []admin.FallbackCount{{Reason: "peer_dead", Side: config.SideClient, Count: 2}}, snap.Fallbacks)
		native := h.g[0].Conns(admin.ConnQuery{All: true})
		require.Equal(t, "udp", native[0].Proto)
	})
}

// TestDatagramPeerComesBack: news of a gateway let it be asked again at once.
func TestDatagramPeerComesBack(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("before"))
		h.stop(1)
		require.Equal(t, negotiate.ReasonDrained, h.native(0, 0), "it has said so")
		h.start(1)
		h.d[1].mu.Lock()
		clear(h.d[1].peers)
		h.d[1].mu.Unlock()
		h.want(1) // its own program: a query, which is news
		h.capable(1)
		h.want(0)
		require.Eventually(t, func() bool { h.want(0); return h.d[0].peer(pairAddrs[1], 0).Capable }, 30*time.Second, 50*time.Millisecond)
		h.pass(0, ends, []byte("after"))
		h.pass(1, h.ends(1, 53, 4000), []byte("back"))
	})
}

// TestDatagramServiceDeclined: what came is delivered, and the service is left
// alone from then on.
func TestDatagramServiceDeclined(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		h.d[1].pass[53], h.d[1].pass[4000] = true, true // nor is it an answer to a client
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("first"))
		require.Equal(t, negotiate.ReasonPolicy, h.native(0, 53))
		require.True(t, h.d[0].peer(pairAddrs[1], 0).Capable, "other services are carried")
		require.Eventually(t, func() bool { return h.d[0].wasClosed(h.tuple(0, ends)) }, 30*time.Second, time.Millisecond)
		require.Empty(t, h.g[0].Conns(admin.ConnQuery{}))
		h.pass(0, h.ends(0, 4000, 54), []byte("other"))
		require.Eventually(t, func() bool { return h.d[1].wasClosed(h.tuple(1, ends)) }, 30*time.Second, 10*time.Millisecond)
	})
}

// TestDatagramsSwitchedOff: by either side, and on again.
func TestDatagramsSwitchedOff(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("on"))
		for i := range h.g {
			require.NoError(t, h.g[i].SetOff(true))
			require.Equal(t, negotiate.ReasonOff, h.native(0, 0))
			require.Equal(t, negotiate.ReasonOff, h.native(1, 0))
			h.d[0].steer(t, ends, []byte("steered too late"))
			require.Equal(t, ends, h.d[0].receive(t).dgramEnds, "given back")
			require.NoError(t, h.g[i].SetOff(false))
			h.capable(0)
			h.capable(1)
			h.pass(0, ends, []byte("on again"))
		}
	})
}

// TestDatagramsClosed: everything is native, and what is in A goes back.
func TestDatagramsClosed(t *testing.T) {
	h := newDgramHosts(t, config.DeviceShm, config.DeviceSoft)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("carried"))
	h.g[0].quiesceDatagrams()
	require.Equal(t, negotiate.ReasonDrained, h.native(0, 0))
	require.Equal(t, negotiate.ReasonDrained, h.native(1, 0))
	h.d[0].steer(t, ends, []byte("late"))
	require.Equal(t, "late", string(h.d[0].receive(t).payload))
	h.d[1].steer(t, h.ends(1, 53, 4000), []byte("answer"))
	require.Equal(t, "answer", string(h.d[1].receive(t).payload), "given back by the other side")
	h.stop(0)
}

func (g *gateway) quiesceDatagrams() { g.dgrams.Load().quiesce(negotiate.ReasonDrained) }

// TestDatagramsNotProvedAreNotCarried: the peer answers, but no packet reaches
// its queue pair.
func TestDatagramsNotProvedAreNotCarried(t *testing.T) {
	h := newDgramHosts(t, config.DeviceSoft)
	e := h.engine(1)
	h.want(0)
	h.capable(0)
	h.stop(0)
	e.s.Call(func() {
		for p := range e.ports {
			p.qkey ^= 1 // what peers are told from here on is wrong
		}
	})
	h.start(0)
	h.d[0].mu.Lock()
	clear(h.d[0].peers)
	h.d[0].mu.Unlock()
	h.want(0)
	require.Equal(t, negotiate.ReasonCarrierUnreachable, h.native(0, 0))
}

// TestDatagramsInPieces: over a path with a small MTU, of every size around the
// edges.
func TestDatagramsInPieces(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		for i := range h.g {
			h.narrow(i)
		}
		h.meet()
		for _, n := range []int{0, 1, 1007, 1008, 1009, 1472, 2015, 2016, 2017, 8972, 65507} {
			h.pass(0, h.ends(0, 4000, 53), randomBytes(n))
			h.pass(1, h.ends(1, 53, 4000), randomBytes(n))
		}
		require.Zero(t, h.stats(1).Dropped[admin.DropReassembly])
	})
}

// TestDatagramFlowsAreBounded: per peer; the quietest goes, and comes back when
// it speaks.
func TestDatagramFlowsAreBounded(t *testing.T) {
	h := newDgramHosts(t, config.DeviceShm)
	for i := range h.g {
		e := h.engine(i)
		e.s.Call(func() {
			h.g[i].cfg.Limits.MaxFlows = 40
			h.g[i].live.Store(&liveConfig{Config: h.g[i].cfg})
		})
	}
	h.meet()
	for i := range uint16(30) {
		h.pass(0, h.ends(0, 4000+i, 53), []byte("x"))
	}
	for i := range h.g {
		require.Len(t, h.g[i].Conns(admin.ConnQuery{}), 10)
	}
	first := h.ends(0, 4000, 53)
	require.True(t, h.d[1].wasClosed(h.tuple(1, first)))
	require.False(t, h.d[1].isOpen(h.tuple(1, first)))
	h.pass(0, first, []byte("again"))
	require.True(t, h.d[1].isOpen(h.tuple(1, first)))
	require.EqualValues(t, 31, h.g[1].Snapshot().UDP.Flows[config.CarrierShm].Total)
	require.EqualValues(t, 10, h.g[1].Snapshot().UDP.Flows[config.CarrierShm].Now)
}

// TestDatagramFlowsEndWhenIdle: the entries of the programs go with them.
func TestDatagramFlowsEndWhenIdle(t *testing.T) {
	h := newDgramHosts(t, config.DeviceShm)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("x"))
	for i := range h.g {
		e := h.engine(i)
		e.s.Call(func() {
			f := e.flows[h.tuple(i, ends)]
			e.now = f.seen.Add(dgramIdle - time.Millisecond)
			e.sweep()
			require.Len(t, e.flows, 1)
			e.now = f.seen.Add(dgramIdle)
			e.sweep()
			require.Empty(t, e.flows)
		})
		require.True(t, h.d[i].wasClosed(h.tuple(i, ends)))
		past := h.g[i].Conns(admin.ConnQuery{Closed: true})
		require.Len(t, past, 1)
		require.Equal(t, admin.EndClosed, past[0].End)
		require.Empty(t, past[0].Reason)
	}
}

// TestDatagramsOnlyForThoseWhoWantThem: without a rule, or without a port, nothing
// listens and nobody is told of a port.
func TestDatagramsOnlyForThoseWhoWantThem(t *testing.T) {
	for name, cfg := range map[string]config.Config{
		"no rule":  {Policy: []config.Rule{{Action: config.ActionAccelerate}}},
		"pass":     {Policy: []config.Rule{{Match: config.Match{Proto: config.ProtoUDP}, Action: config.ActionPass}}},
		"no port":  {Policy: []config.Rule{{Match: config.Match{Proto: config.ProtoUDP}, Action: config.ActionAccelerate}}, DatagramPort: config.NoDatagrams},
		"observe":  {Policy: []config.Rule{{Match: config.Match{Proto: config.ProtoUDP}, Action: config.ActionAccelerate}}, Mode: config.ModeObserve},
		"no steer": {Policy: []config.Rule{{Match: config.Match{Proto: config.ProtoUDP}, Action: config.ActionAccelerate}}},
	} {
		wire := netstack.NewWire(1500, 1)
		if cfg.Mode == "" {
			cfg.Mode = config.ModeEnforce
		}
		cfg.StateDir, cfg.Carriers, cfg.Shards = t.TempDir(), []config.DeviceKind{}, 1
		host := Host{Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A()}
		if name != "no steer" {
			d := newFakeDatagrams(t)
			host.Datagrams, host.AppTUN = d, d.a
		}
		g, err := newGateway(cfg.WithDefaults(), host, slog.New(slog.DiscardHandler))
		require.NoError(t, err, name)
		require.Nil(t, g.dgrams.Load(), name)
		require.Zero(t, g.dgrams.Load().port(), name)
		require.Empty(t, g.Snapshot().Datagrams.Sent, name)
		g.onEvent(ebpf.Event{Kind: ebpf.EventDatagram})
		g.close()
		wire.Close()
	}
}

// TestDatagramsDoNotAllocate: from A to A.
func TestDatagramsDoNotAllocate(t *testing.T) {
	onBoth(t, func(t *testing.T, kind config.DeviceKind) {
		h := newDgramHosts(t, kind)
		h.meet()
		pkt := steered(h.ends(0, 4000, 53), make([]byte, 1000))
		buf := make([]byte, 2000)
		polled := []unix.PollFd{{Fd: int32(h.d[1].test), Events: unix.POLLIN}}
		one := func() {
			_, _ = unix.Write(h.d[0].test, pkt)
			for {
				_, _ = unix.Poll(polled, 5000)
				n, err := unix.Read(h.d[1].test, buf)
				if n == len(pkt) {
					return
				}
				if err != unix.EAGAIN {
					panic("datagram")
				}
			}
		}
		for range 2000 {
			one()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		const count = 5000
		for range count {
			one()
		}
		runtime.ReadMemStats(&after)
		limit := count/10 + uint64(restingAllocations(time.Since(begun)))
		require.Less(t, after.Mallocs-before.Mallocs, limit, "the rest is ticks and sweeps")
	})
}

// TestDatagramPortTaken: the gateway starts all the same, and says what is
// missing.
func TestDatagramPortTaken(t *testing.T) {
	h := newDgramHosts(t, config.DeviceShm)
	h.stop(1)
	at := netip.AddrPortFrom(pairAddrs[1], h.port.Port())
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	require.NoError(t, err)
	defer c.Close()
	h.start(1)
	require.Nil(t, h.engine(1))
	require.Zero(t, h.engine(1).port())
	require.Equal(t, []string{"device_failed"}, h.g[1].Status().Degraded)
}

// TestDatagramAnswerAfterIdleness: of a server to a client whose flow this side
// has forgotten; a rule about the server's port selects it all the same.
func TestDatagramAnswerAfterIdleness(t *testing.T) {
	h := newDgramHosts(t, config.DeviceShm)
	h.d[0].pass[4000] = true
	h.meet()
	h.pass(0, h.ends(0, 4000, 53), []byte("question"))
	e := h.engine(0)
	e.s.Call(func() { e.endFlow(e.flows[h.tuple(0, h.ends(0, 4000, 53))], admin.EndClosed, negotiate.ReasonNone) })
	h.pass(1, h.ends(1, 53, 4000), []byte("answer"))
	list := h.g[0].Conns(admin.ConnQuery{})
	require.Len(t, list, 1)
	require.Equal(t, config.SideClient, list[0].Side)
	require.Zero(t, h.d[1].peer(pairAddrs[0], 4000), "nothing was declined")
}
