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
	"github.com/smcgw/smcgw/verbs"
)

// send makes host i's gateway send a message to its peer as a hostile one would.
func (h *hosts) send(i int, fn func(l *link, slot []byte) (n int, imm *uint32)) {
	h.t.Helper()
	e := h.engine(i)
	e.s.Call(func() {
		l := e.peers[pairAddrs[1-i]].cur
		slot, ok := e.out.take()
		assert.True(h.t, ok)
		n, imm := fn(l, e.out.bytes(slot))
		e.out.lend(slot, l.port, 1)
		l.port.flight++
		l.port.address(l, slot)
		l.port.wr.Opcode = verbs.WRSend
		if imm != nil {
			l.port.wr.Opcode, l.port.wr.ImmData = verbs.WRSendWithImm, *imm
		}
		l.port.sges[0] = verbs.SGE{Addr: l.port.tx.Addr() + uint64(int(slot)*slotSize), Length: uint32(n), LKey: l.port.tx.LKey()}
		l.port.wr.SGList = l.port.sges[:1]
		assert.True(h.t, l.port.post(verbs.SendSignaled))
		e.s.Flush()
	})
}

// TestDatagramViolations: what no honest peer sends is dropped and counted, and
// the rest goes on.
func TestDatagramViolations(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		good := h.ends(0, 4000, 53)
		third := netip.MustParseAddr("127.77.0.9")
		imm := func(n uint32) *uint32 { return &n }
		for name, v := range map[string]struct {
			msg  []byte
			imm  *uint32
			want report.DatagramDrop
		}{
			"empty":       {nil, nil, report.DropMalformed},
			"headers":     {good.append(nil)[:15], nil, report.DropMalformed},
			"version":     {append([]byte{5}, good.append(nil)[1:]...), nil, report.DropMalformed},
			"immediate":   {good.append(nil), imm(3 << 30), report.DropMalformed},
			"piece":       {good.append(nil), imm(pieceImm(1, 2, true)), report.DropMalformed},
			"source":      {endPair{src: netip.AddrPortFrom(third, 1), dst: good.dst}.append(nil), nil, report.DropWrongSource},
			"destination": {endPair{src: good.src, dst: netip.AddrPortFrom(third, 1)}.append(nil), nil, report.DropWrongTarget},
			"own port":    {h.ends(0, 4000, h.port).append(nil), nil, report.DropWrongTarget},
			"control":     {[]byte("what"), imm(controlImm(99)), report.DropUnproven},
			"echo":        {make([]byte, 64), imm(controlImm(controlEcho)), report.DropUnproven},
			"notice": {
				nativeNotice{service: netip.AddrPortFrom(third, 1), reason: 1, seconds: 9}.append(nil),
				imm(controlImm(controlNative)), report.DropUnproven,
			},
		} {
			before := h.stats(1).Dropped[v.want]
			h.send(0, func(_ *link, slot []byte) (int, *uint32) { return copy(slot, v.msg), v.imm })
			require.Eventually(t, func() bool { return h.stats(1).Dropped[v.want] == before+1 }, 30*time.Second, time.Millisecond, name)
		}
		require.Nil(t, h.d[1].Next(10*time.Millisecond), "nothing of it reaches a program")
		h.pass(0, good, []byte("and on"))
		require.True(t, h.d[1].Peer(pairAddrs[0], 0).Capable)
	})
}

// TestDatagramsOfAStranger: a queue pair that was never made known is not heard,
// even if it knows the key.
func TestDatagramsOfAStranger(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	e := h.engine(1)
	e.s.Call(func() {
		for _, l := range e.peers[pairAddrs[0]].links {
			l.valid = false
		}
	})
	h.d[0].steer(t, h.ends(0, 4000, 53), []byte("hello"))
	require.Eventually(t, func() bool { return h.stats(1).Dropped[report.DropUnproven] == 1 }, 30*time.Second, time.Millisecond)
	require.Nil(t, h.d[1].Next(10*time.Millisecond))
}

// TestDatagramKeyOfAnother: a query in the name of a proven peer changes nothing;
// if it was the peer, started again, its probes are echoed to it all the same.
func TestDatagramKeyOfAnother(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.meet()
	e := h.engine(1)
	var l *link
	e.s.Call(func() {
		l = e.peers[pairAddrs[0]].cur
		o := resolve.UDOffer{
			Kind: negotiate.CarrierSoft, MTU: 256, QPN: l.qpn, QKey: l.qkey ^ 1, GID: verbs.GIDOf(l.remote), UDPPort: 9,
		}
		e.expect(resolve.ExpectPeer{Peer: l.remote, Local: l.local, GatewayID: [16]byte{7}, Offers: []resolve.UDOffer{o}})
		assert.Same(t, l, e.peers[pairAddrs[0]].links[0])
		assert.Equal(t, l.qkey^1, l.newKey)
	})
	h.pass(1, h.ends(1, 53, 4000), randomBytes(1000))
	echoes := func(i int) {
		t.Helper()
		o := h.engine(i)
		before := h.stats(i).Dropped[report.DropUnproven]
		var heard time.Time
		o.s.Call(func() {
			p := o.peers[pairAddrs[1-i]]
			heard = p.heard
			p.cur.probe(cookieLen)
			o.s.Flush()
		})
		require.Eventually(t, func() (ok bool) {
			o.s.Call(func() { ok = o.peers[pairAddrs[1-i]].heard.After(heard) })
			return ok
		}, 30*time.Second, time.Millisecond)
		require.Equal(t, before, h.stats(i).Dropped[report.DropUnproven])
	}
	echoes(0)
	h.engine(0).s.Call(func() { // the new one has the other key
		for p := range h.engine(0).ports {
			p.qkey ^= 1
			assert.NoError(t, p.qp.Modify(&verbs.QPAttr{QKey: p.qkey}, verbs.QPAttrQKey))
		}
	})
	echoes(0)
}

// TestDatagramNoticesOfOthers: a peer decides about the services that it is sent
// something, and cannot fill tables with others.
func TestDatagramNoticesOfOthers(t *testing.T) {
	h := newHosts(t, report.DeviceShm)
	h.meet()
	there := h.ends(1, 53, 4000) // to host 0
	h.pass(1, there, []byte("x"))
	notice := controlImm(controlNative)
	for _, port := range []uint16{4001, 4000} {
		n := nativeNotice{service: netip.AddrPortFrom(pairAddrs[0], port), reason: 2, seconds: 9}
		h.send(0, func(_ *link, slot []byte) (int, *uint32) { return copy(slot, n.append(nil)), &notice })
	}
	require.Equal(t, negotiate.ReasonPolicy, h.native(1, 4000))
	require.Zero(t, h.d[1].Peer(pairAddrs[0], 4001))
}

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
