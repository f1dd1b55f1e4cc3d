package datagram

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

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
