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
		require.Nil(t, h.d[1].next(10*time.Millisecond), "nothing of it reaches a program")
		h.pass(0, good, []byte("and on"))
		require.True(t, h.d[1].peer(pairAddrs[0], 0).Capable)
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
	require.Nil(t, h.d[1].next(10*time.Millisecond))
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
	require.Zero(t, h.d[1].peer(pairAddrs[0], 4001))
}
