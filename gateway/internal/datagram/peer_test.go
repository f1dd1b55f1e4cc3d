package datagram

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

func (h *hosts) engine(i int) *engine { return h.g[i].engine.Load().core }

// narrow makes the packets of host i short; no port is there yet.
func (h *hosts) narrow(i int) {
	h.providers(i, func(list []Provider) {
		for j, prov := range list {
			switch prov := prov.(type) {
			case memory:
				list[j] = narrowMemory{prov}
			case network:
				list[j] = narrowNetwork{prov}
			}
		}
	})
}

// providers changes the devices of host i where they are read: on the keeper's goroutine.
func (h *hosts) providers(i int, change func(list []Provider)) {
	k, done := h.engine(i).keeper, make(chan struct{})
	k.jobs <- func() {
		change(k.e.cfg.Providers)
		close(done)
	}
	<-done
}

// narrowMemory and narrowNetwork are devices of short packets.
type narrowMemory struct{ memory }

func (n narrowMemory) Datagrams(s *loop.Shard) (carrier.DatagramDevice, *loop.Queue) {
	d, q := n.memory.Datagrams(s)
	d.Port.ActiveMTU = verbs.MTU1024
	return d, q
}

type narrowNetwork struct{ network }

func (n narrowNetwork) DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error) {
	d, err := n.network.DatagramsAt(local, remote)
	d.Port.ActiveMTU = verbs.MTU1024
	return d, err
}

// tuple is that of a datagram at host i.
func (h *hosts) tuple(i int, e endPair) ebpf.Tuple {
	if e.src.Addr() == pairAddrs[i] {
		return ebpf.Tuple{Local: e.src, Remote: e.dst}
	}
	return ebpf.Tuple{Local: e.dst, Remote: e.src}
}

// crash ends a gateway without a word.
func (h *hosts) crash(i int) {
	h.t.Helper()
	e := h.engine(i)
	e.s.Call(func() { e.stopped = true })
	h.stop(i)
}

// native waits until the programs of host i leave its peer alone.
func (h *hosts) native(i int, port uint16) negotiate.Reason {
	h.t.Helper()
	var p ebpf.DatagramPeer
	require.Eventually(h.t, func() bool {
		p = h.d[i].Peer(pairAddrs[1-i], port)
		return !p.Capable && p.Reason != 0
	}, 30*time.Second, time.Millisecond)
	return negotiate.Reason(p.Reason)
}

// TestDatagramPeerDies: without a word; what is sent then goes natively within
// 1.5 s on a network, at once where memory is shared.
func TestDatagramPeerDies(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("alive"))
		h.crash(1)
		begun := time.Now()
		for h.d[0].Peer(pairAddrs[1], 0).Capable {
			h.d[0].steer(t, ends, []byte("anybody"))
			time.Sleep(10 * time.Millisecond)
			require.Less(t, time.Since(begun), patience)
		}
		t.Logf("native after %v", time.Since(begun))
		require.Equal(t, negotiate.ReasonPeerDead, h.native(0, 0))
		h.d[0].steer(t, ends, []byte("native"))
		given := string(h.d[0].receive(t).payload)
		for given == "anybody" { // returned to the network in between
			given = string(h.d[0].receive(t).payload)
		}
		require.Equal(t, "native", given, "given back")
		require.Empty(t, h.g[0].flows())
		past := h.g[0].ended()
		require.Equal(t, report.EndNative, past[0].End)
		require.Equal(t, "peer_dead", past[0].Reason)
	})
}

// TestDatagramPeerComesBack: news of a gateway let it be asked again at once.
func TestDatagramPeerComesBack(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("before"))
		h.stop(1)
		require.Equal(t, negotiate.ReasonDrained, h.native(0, 0), "it has said so")
		h.start(1)
		h.forget(1)
		h.want(1) // its own program: a query, which is news
		h.capable(1)
		h.want(0)
		require.Eventually(t, func() bool { h.want(0); return h.d[0].Peer(pairAddrs[1], 0).Capable }, 30*time.Second, 50*time.Millisecond)
		h.pass(0, ends, []byte("after"))
		h.pass(1, h.ends(1, 53, 4000), []byte("back"))
	})
}

// TestDatagramAnswersAskAgain: a peer that was given up while it went on to send is asked again by what answers it.
func TestDatagramAnswersAskAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		question, answer := h.ends(0, 4000, 53), h.ends(1, 53, 4000)
		h.pass(0, question, []byte("before"))
		e := h.engine(1)
		e.s.Call(func() { e.native(pairAddrs[0], negotiate.ReasonPeerDead, time.Millisecond) })
		h.pass(0, question, []byte("after"))
		require.False(t, h.d[1].Peer(pairAddrs[0], 0).Capable)
		require.Eventually(t, func() bool {
			h.d[1].steer(t, answer, []byte("answer"))
			return h.d[1].Peer(pairAddrs[0], 0).Capable
		}, 30*time.Second, 10*time.Millisecond)
	})
}

// TestDatagramServiceDeclined: what came is delivered, and the service is left
// alone from then on.
func TestDatagramServiceDeclined(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.d[1].Pass[53], h.d[1].Pass[4000] = true, true // nor is it an answer to a client
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("first"))
		require.Equal(t, negotiate.ReasonPolicy, h.native(0, 53))
		require.True(t, h.d[0].Peer(pairAddrs[1], 0).Capable, "other services are carried")
		require.Eventually(t, func() bool { return h.d[0].WasClosed(h.tuple(0, ends)) }, 30*time.Second, time.Millisecond)
		require.Empty(t, h.g[0].flows())
		h.pass(0, h.ends(0, 4000, 54), []byte("other"))
		require.Eventually(t, func() bool { return h.d[1].WasClosed(h.tuple(1, ends)) }, 30*time.Second, 10*time.Millisecond)
	})
}

// TestDatagramsSwitchedOff: by either side, and on again.
func TestDatagramsSwitchedOff(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		ends := h.ends(0, 4000, 53)
		h.pass(0, ends, []byte("on"))
		for i := range h.g {
			h.g[i].setOff(true)
			require.Equal(t, negotiate.ReasonOff, h.native(0, 0))
			require.Equal(t, negotiate.ReasonOff, h.native(1, 0))
			h.d[0].steer(t, ends, []byte("steered too late"))
			require.Equal(t, ends, h.d[0].receive(t).endPair, "given back")
			h.g[i].setOff(false)
			h.capable(0)
			h.capable(1)
			h.pass(0, ends, []byte("on again"))
		}
	})
}

// TestDatagramsClosed: everything is native, and what is in A goes back.
func TestDatagramsClosed(t *testing.T) {
	h := newHosts(t, report.DeviceShm, report.DeviceSoft)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("carried"))
	h.g[0].engine.Load().Quiesce(negotiate.ReasonDrained)
	require.Equal(t, negotiate.ReasonDrained, h.native(0, 0))
	require.Equal(t, negotiate.ReasonDrained, h.native(1, 0))
	h.d[0].steer(t, ends, []byte("late"))
	require.Equal(t, "late", string(h.d[0].receive(t).payload))
	h.d[1].steer(t, h.ends(1, 53, 4000), []byte("answer"))
	require.Equal(t, "answer", string(h.d[1].receive(t).payload), "given back by the other side")
	h.stop(0)
}

// TestDatagramsNotProvedAreNotCarried: the peer answers, but no packet reaches
// its queue pair.
func TestDatagramsNotProvedAreNotCarried(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
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
	h.forget(0)
	h.want(0)
	require.Equal(t, negotiate.ReasonCarrierUnreachable, h.native(0, 0))
}

// TestDatagramFlowsAreBounded: per peer; the quietest goes, and comes back when
// it speaks.
func TestDatagramFlowsAreBounded(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	for i := range h.g {
		h.g[i].most.Store(40)
	}
	h.meet()
	for i := range uint16(30) {
		h.pass(0, h.ends(0, 4000+i, 53), []byte("x"))
	}
	for i := range h.g {
		require.Len(t, h.g[i].flows(), 10)
	}
	first := h.ends(0, 4000, 53)
	require.True(t, h.d[1].WasClosed(h.tuple(1, first)))
	require.False(t, h.d[1].IsOpen(h.tuple(1, first)))
	h.pass(0, first, []byte("again"))
	require.True(t, h.d[1].IsOpen(h.tuple(1, first)))
	require.EqualValues(t, 31, h.g[1].snapshot().UDP.Flows[report.CarrierShm].Total)
	require.EqualValues(t, 10, h.g[1].snapshot().UDP.Flows[report.CarrierShm].Now)
}

// TestDatagramFlowsEndWhenIdle: the entries of the programs go with them.
func TestDatagramFlowsEndWhenIdle(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.meet()
	ends := h.ends(0, 4000, 53)
	h.pass(0, ends, []byte("x"))
	for i := range h.g {
		e := h.engine(i)
		e.s.Call(func() {
			f := e.flows.find(h.tuple(i, ends))
			e.now = f.seen.Add(flowIdle - time.Millisecond)
			e.sweep()
			assert.Equal(t, 1, e.flows.len())
			e.now = f.seen.Add(flowIdle)
			e.sweep()
			assert.Zero(t, e.flows.len())
		})
		require.True(t, h.d[i].WasClosed(h.tuple(i, ends)))
		past := h.g[i].ended()
		require.Len(t, past, 1)
		require.Equal(t, report.EndClosed, past[0].End)
		require.Empty(t, past[0].Reason)
	}
}

// TestDatagramsDoNotAllocate: from A to A.
func TestDatagramsDoNotAllocate(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		pkt := steered(h.ends(0, 4000, 53), make([]byte, 1000))
		buf := make([]byte, 2000)
		polled := []unix.PollFd{{Fd: int32(h.d[1].Test), Events: unix.POLLIN}}
		one := func() {
			_, _ = unix.Write(h.d[0].Test, pkt)
			for {
				_, _ = unix.Poll(polled, 5000)
				n, err := unix.Read(h.d[1].Test, buf)
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

// TestDatagramPortTaken: there is no engine, and nothing of it stays.
func TestDatagramPortTaken(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.stop(1)
	at := netip.AddrPortFrom(pairAddrs[1], h.port)
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	require.NoError(t, err)
	defer c.Close()
	require.ErrorIs(t, h.open(1), unix.EADDRINUSE)
}

// TestNoEngine: what is asked of a gateway without one.
func TestNoEngine(t *testing.T) {
	var e *Engine
	var s report.Snapshot
	e.Snapshot(&s)
	require.NotNil(t, s.Datagrams.Sent)
	require.Empty(t, s.Datagrams.Sent)
	require.Zero(t, e.Port())
	require.Empty(t, e.Flows())
	e.CountFlows(nil)
	e.Asked(ebpf.Tuple{})
	e.News(ebpf.Tuple{}, 1, [16]byte{})
	e.PeerDown(nil)
	e.SetKeys(nil)
	e.Flush()
	e.Quiesce(negotiate.ReasonOff)
	e.Resume()
	e.Close()
	e.Release()
	e.Leave()
}

// TestDatagramAnswerAfterIdleness: of a server to a client whose flow this side
// has forgotten; a rule about the server's port selects it all the same.
func TestDatagramAnswerAfterIdleness(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.d[0].Pass[4000] = true
	h.meet()
	h.pass(0, h.ends(0, 4000, 53), []byte("question"))
	e := h.engine(0)
	e.s.Call(func() {
		e.endFlow(e.flows.find(h.tuple(0, h.ends(0, 4000, 53))), report.EndClosed, negotiate.ReasonNone)
	})
	h.pass(1, h.ends(1, 53, 4000), []byte("answer"))
	list := h.g[0].flows()
	require.Len(t, list, 1)
	require.Equal(t, report.SideClient, list[0].Side)
	require.Zero(t, h.d[1].Peer(pairAddrs[0], 4000), "nothing was declined")
}

// known gives host 0 n links to peers that have answered.
func (h *hosts) known(n int) {
	h.t.Helper()
	e := h.engine(0)
	p := h.way(0)
	e.s.Call(func() {
		for i := range n {
			pair := addrPair{pairAddrs[0], netip.AddrFrom4([4]byte{127, 79, byte(i >> 8), byte(i)})}
			o := resolve.UDOffer{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: absentQPN, QKey: 5, GID: verbs.GIDOf(pair.remote), UDPPort: h.soft}
			_, err := e.link(pair, &way{port: p}, &o, [16]byte{9}, true)
			assert.NoError(h.t, err)
		}
	})
}

// TestAllPeersAreToldOfADrain: also those for which there is no slot, or no handle, when it begins.
func TestAllPeersAreToldOfADrain(t *testing.T) {
	const many = 2*slotCount + 7
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	h.known(many)
	e := h.engine(0)
	e.s.Call(func() {
		slots := e.out.free
		e.out.free = nil
		e.quiesce(negotiate.ReasonOff)
		assert.Len(t, e.notices, many)
		e.out.free = slots
	})
	told := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return a.begun("NATIVE") == n }, patience, time.Millisecond)
		e.s.Call(func() { assert.Empty(t, e.notices) })
	}
	told(many)
	h.g[0].engine.Load().Resume()
	told(2 * many)
	e.s.Call(func() { e.quiesce(negotiate.ReasonDrained) })
	told(3 * many)
	h.stop(0)
	require.Equal(t, 3*many, a.begun("NATIVE"), "once each")
}

// TestADrainDoesNotWaitForEver: for a peer that cannot be told, nor for one that is forgotten.
func TestADrainDoesNotWaitForEver(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	h.known(3)
	release := a.hold("CreateAH")
	e := h.engine(0)
	e.drain()
	require.Zero(t, a.begun("NATIVE"))
	told := make(chan struct{})
	e.s.Call(func() {
		assert.Len(t, e.notices, 3)
		e.told = told
		for _, p := range e.peers {
			e.unlink(p.links[0])
		}
		assert.Empty(t, e.notices)
	})
	<-told
	release()
}
