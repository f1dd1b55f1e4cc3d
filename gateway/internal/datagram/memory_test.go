package datagram

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// memory is the device of host i that shares memory.
func (h *hosts) memory(i int) *fakeMemory {
	for _, prov := range h.g[i].providers {
		if m, ok := prov.(*fakeMemory); ok {
			return m
		}
	}
	return nil
}

// wantAt is the programs' question of host i about a host without a gateway.
func (h *hosts) wantAt(i int, remote netip.Addr) {
	h.g[i].engine.Load().Asked(ebpf.Tuple{Local: netip.AddrPortFrom(pairAddrs[i], 9), Remote: netip.AddrPortFrom(remote, 9)})
}

// ports counts the ports of host i.
func (h *hosts) ports(i int) (all map[negotiate.CarrierKind]int) {
	e := h.engine(i)
	all = map[negotiate.CarrierKind]int{}
	e.s.Call(func() {
		for p := range e.ports {
			all[p.kind]++
		}
	})
	return all
}

// queried waits until host i has sent so many queries.
func (h *hosts) queried(i int, n int) {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return h.stats(i).Resolution.Queries == uint64(n) }, patience, time.Millisecond)
}

// noGateway is the address of a host without a gateway.
func noGateway(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 78, byte(i >> 8), byte(i) + 1}) }

// TestMemoryOfNoUseMakesRoom: hosts that never take an offer of memory do not keep
// the next one from it.
func TestMemoryOfNoUseMakesRoom(t *testing.T) {
	h := newHosts(t, report.DeviceShm, report.DeviceSoft)
	for i := range h.g {
		for j := range maxMemoryPorts + 3 {
			h.wantAt(i, noGateway(j))
			h.queried(i, j+1)
			require.LessOrEqual(t, h.ports(i)[negotiate.CarrierSHM], maxMemoryPorts)
		}
		require.Zero(t, h.memory(i).held.Load(), "the device may take the offers back")
	}
	h.meet()
	h.pass(0, h.ends(0, 4000, 53), []byte("x"))
	require.Equal(t, report.CarrierShm, h.g[0].flows()[0].Carrier)
	require.LessOrEqual(t, h.ports(0)[negotiate.CarrierSHM], maxMemoryPorts)

	for j := range maxMemoryPorts { // and they do not end what has begun
		h.wantAt(0, noGateway(1000+j))
	}
	require.Eventually(t, func() bool { return h.stats(0).Resolution.Queries >= 2*maxMemoryPorts }, patience, time.Millisecond)
	h.pass(0, h.ends(0, 4000, 53), []byte("y"))
	require.EqualValues(t, 1, h.memory(0).held.Load())
	h.stop(1)
	require.Eventually(t, func() bool { return h.memory(0).held.Load() == 0 }, patience, time.Millisecond, "its port is closed")
}

// TestMemoryIsOfferedWithAQueryOnly: a host that may not be asked costs nothing.
func TestMemoryIsOfferedWithAQueryOnly(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.g[0].unnamed.Store(true)
	for j := range 3 {
		h.wantAt(0, noGateway(j))
	}
	require.Eventually(t, func() bool { return h.d[0].Peer(noGateway(2), 0).Reason != 0 }, patience, time.Millisecond)
	offers := 0
	h.providers(0, func([]Provider) { offers = len(h.memory(0).offers) }) // after all jobs of the keeper
	require.Zero(t, offers)
	require.Empty(t, h.ports(0))
	require.Zero(t, h.stats(0).Resolution.Queries)

	// News let the host be asked; then there is an offer.
	h.g[0].engine.Load().News(h.tuple(0, h.ends(0, 1, 1)), h.port, h.g[1].id)
	h.want(0)
	h.capable(0)
	h.providers(0, func([]Provider) { offers = len(h.memory(0).offers) })
	require.Equal(t, 1, offers)
}

// TestMemoryTakenBackIsOfferedAnew: the device withdraws an offer that no peer has
// taken; the next query names another one.
func TestMemoryTakenBackIsOfferedAnew(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.wantAt(0, noGateway(0))
	h.queried(0, 1)
	e := h.engine(0)
	pair := addrPair{pairAddrs[0], noGateway(0)}
	var first *port
	e.s.Call(func() { first = e.ways[pair].list[0].port })
	require.NoError(t, first.shm.Close())
	var list []resolve.UDOffer
	e.s.Call(func() { list = e.offers(pair.local, pair.remote) })
	require.Empty(t, list, "nothing that has been withdrawn")
	require.Eventually(t, func() bool {
		e.s.Call(func() { list = e.offers(pair.local, pair.remote) })
		return len(list) == 1 && list[0].Key != first.shm.Key()
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool { return h.ports(0)[negotiate.CarrierSHM] == 1 }, patience, time.Millisecond)
	require.True(t, first.is(portGone))
}

// newMixedHosts returns a host with soft and one whose soft device plays an adapter. allow
// tells which of both allow the other kind at the other end.
func newMixedHosts(t *testing.T, port uint16, allow [2]bool) *hosts {
	h := newHosts(t, report.DeviceSoft)
	for i := range h.g {
		h.stop(i)
	}
	h.soft = port
	h.edit = func(i int, list []Provider) {
		n := list[0].(fakeNetwork)
		n.kind, n.mixed = [2]negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierHW}[i], allow[i]
		list[0] = n
	}
	for i := range h.g {
		h.start(i)
		h.forget(i)
	}
	return h
}

// TestDatagramsMixed: a host without an adapter and one that has nothing else carry
// datagrams between them, by the kind of its own device each.
func TestDatagramsMixed(t *testing.T) {
	h := newMixedHosts(t, verbs.RoCEUDPPort, [2]bool{true, true})
	h.meet()
	there, back := h.ends(0, 4000, 53), h.ends(1, 53, 4000)
	for _, n := range []int{0, 1, 511, 1472, 4081, 65507} {
		h.pass(0, there, randomBytes(n))
		h.pass(1, back, randomBytes(n))
	}
	for i, name := range []report.Carrier{report.CarrierSoft, report.CarrierHW} {
		s := h.stats(i)
		require.EqualValues(t, 6, s.Sent[name])
		require.EqualValues(t, 6, s.Received[name])
		require.Equal(t, name, h.g[i].flows()[0].Carrier)
	}
}

// TestDatagramsNotMixed: a host that does not want it, and one that receives elsewhere than
// adapters send to, have no kind in common with the other one.
func TestDatagramsNotMixed(t *testing.T) {
	for name, c := range map[string]struct {
		port  uint16
		allow [2]bool
	}{
		"soft":    {verbs.RoCEUDPPort, [2]bool{false, true}},
		"adapter": {verbs.RoCEUDPPort, [2]bool{true, false}},
		"port":    {verbs.RoCEUDPPort + 2, [2]bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newMixedHosts(t, c.port, c.allow)
			h.want(0)
			require.Equal(t, negotiate.ReasonNoCommonCarrier, h.native(0, 0))
		})
	}
}
