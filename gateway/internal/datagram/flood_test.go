package datagram

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
)

// stoppedName is the rendezvous of a gateway that was stopped: nothing ever answers there.
const stoppedName = "stopped"

// stoppedMemory is a memory beside a stopped gateway.
type stoppedMemory struct {
	memory
	calls   *atomic.Int64 // to the stopped gateway
	release chan struct{}
}

func (m stoppedMemory) Attach(ctx context.Context, from netip.Addr, name string, key [16]byte) (*carrier.ShmPeer, error) {
	if name != stoppedName {
		return m.memory.Attach(ctx, from, name, key)
	}
	m.calls.Add(1)
	<-m.release
	return nil, carrier.ErrNotHere
}

// besideStopped starts host 1 again, beside a stopped gateway.
func (h *hosts) besideStopped() stoppedMemory {
	s := stoppedMemory{calls: new(atomic.Int64), release: make(chan struct{})}
	h.t.Cleanup(func() { close(s.release) })
	h.stop(1)
	h.edit = func(i int, list []Provider) {
		for j, prov := range list {
			if m, ok := prov.(memory); ok && i == 1 {
				list[j] = stoppedMemory{m, s.calls, s.release}
			}
		}
	}
	h.start(1)
	return s
}

// forged has host 1 receive a query that offers the memory of the stopped gateway.
func (h *hosts) forged(from netip.AddrPort, key byte) {
	e, to := h.engine(1), netip.AddrPortFrom(pairAddrs[1], h.port)
	msg := resolve.AppendResolve(nil, &resolve.Resolve{
		Nonce: resolve.QueryNonce{key}, MinVersion: negotiate.MinVersion, MaxVersion: negotiate.Version, GatewayID: [16]byte{99}, HostID: e.cfg.HostID,
		Target: to, Offers: []resolve.UDOffer{{Kind: negotiate.CarrierSHM, MTU: 4096, QPN: 7, QKey: 8, Name: stoppedName, Key: [16]byte{key}}},
	})
	e.s.Call(func() { e.message(to, from, msg) })
}

// idle waits until the keeper of host i has done what it had to.
func (h *hosts) idle(i int) { h.providers(i, func([]Provider) {}) }

// TestForgedQueriesCostNothing: a query that is not answered does not reach the keeper.
func TestForgedQueriesCostNothing(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	s := h.besideStopped()
	e := h.engine(1)
	h.forged(netip.AddrPortFrom(absent(1), h.port+1), 1) // the port of any user
	e.s.Call(func() { e.resolve.SetKeys(negotiate.Keys{make([]byte, 32)}) })
	h.forged(netip.AddrPortFrom(absent(2), h.port), 2) // no MAC
	e.s.Call(func() { e.resolve.SetKeys(nil) })
	h.g[1].off.Store(true)
	h.forged(netip.AddrPortFrom(absent(3), h.port), 3)
	h.g[1].off.Store(false)
	h.idle(1)
	e.s.Call(func() { assert.Empty(t, e.ways) })
	require.Zero(t, s.calls.Load())

	h.forged(netip.AddrPortFrom(absent(4), h.port), 4)
	require.Eventually(t, func() bool { return s.calls.Load() == 1 }, patience, time.Millisecond, "this one counts")
}

// TestStoppedGatewayHoldsUpNoOther: peers are found while a gateway that was named as the
// owner of memory does not answer.
func TestStoppedGatewayHoldsUpNoOther(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		kinds := []report.DeviceKind{report.DeviceShm}
		if kind != report.DeviceShm {
			kinds = append(kinds, kind)
		}
		h := newHosts(t, kinds...)
		s := h.besideStopped()
		for i := range 3 * maxAttaching {
			h.forged(netip.AddrPortFrom(absent(i), h.port), byte(i+1))
			h.idle(1)
		}
		require.Eventually(t, func() bool { return s.calls.Load() > 0 }, patience, time.Millisecond)
		require.EqualValues(t, 1, s.calls.Load(), "one at a time")
		require.EqualValues(t, 2*maxAttaching-1, h.stats(1).Resolution.Ignored, "the others find too many that wait")
		h.meet()
		h.pass(0, h.ends(0, 4000, 53), []byte("x"))
		require.Equal(t, report.CarrierShm, h.g[0].flows()[0].Carrier)
	})
}

// TestAnswersPassTheFlood: the answer to a query counts, whatever else arrives.
func TestAnswersPassTheFlood(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.engine(0).sockets.limit.SetBurst(0) // used up
	h.want(0)
	h.capable(0)
	require.Zero(t, h.stats(0).Resolution.Asked, "nothing else is read")
	require.Empty(t, h.engine(0).sockets.asked)
}

// TestWaysOfUseStay: those of hosts that only ask make room, one by one.
func TestWaysOfUseStay(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	e := h.engine(0)
	e.s.Call(func() {
		for i := range waysMost {
			e.ways[addrPair{pairAddrs[0], absent(i)}] = knownWays{at: e.now.Add(time.Duration(i) * time.Second)}
		}
	})
	for i := range 10 {
		done := make(chan struct{})
		e.s.Call(func() { e.look(addrPair{pairAddrs[0], absent(waysMost + i)}, nil, func() { close(done) }) })
		<-done
	}
	has := func(remote netip.Addr) (ok bool) {
		e.s.Call(func() { _, ok = e.ways[addrPair{pairAddrs[0], remote}] })
		return ok
	}
	require.True(t, has(pairAddrs[1]), "the peer")
	require.True(t, has(absent(waysMost-1)), "of the last ones")
	require.False(t, has(absent(0)), "the oldest")
}
