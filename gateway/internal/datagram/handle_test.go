package datagram

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// asks has n hosts that answer no ARP ask host 1, and returns the links that their queries make.
func (h *hosts) asks(n int) (links []*link) {
	h.t.Helper()
	to := netip.AddrPortFrom(pairAddrs[1], h.port)
	var conns []*net.UDPConn
	for i := range n {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(absent(i), h.port)))
		require.NoError(h.t, err)
		defer c.Close()
		conns = append(conns, c)
	}
	e := h.engine(1)
	for end := time.Now().Add(patience); len(links) < n; {
		require.True(h.t, time.Now().Before(end), "%d links", len(links))
		for i, c := range conns {
			r := resolve.Resolve{
				Nonce: resolve.QueryNonce{byte(i + 1)}, MinVersion: negotiate.MinVersion, MaxVersion: negotiate.Version, GatewayID: [16]byte{9, byte(i)}, Target: to,
				Offers: []resolve.UDOffer{{Kind: negotiate.CarrierSoft, MTU: 1024, QPN: absentQPN, QKey: 5, GID: verbs.GIDOf(absent(i)), UDPPort: h.soft}},
			}
			_, err := c.WriteToUDPAddrPort(resolve.AppendResolve(nil, &r), to)
			require.NoError(h.t, err)
		}
		time.Sleep(time.Millisecond)
		e.s.Call(func() {
			links = nil
			for p := range e.ports {
				links = slices.AppendSeq(links, maps.Values(p.links))
			}
		})
	}
	return links
}

// absent is the address of the i-th host of asks, absentQPN the queue pair that all of them name.
func absent(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 77, byte(1 + (i+1)>>8), byte(i + 1)})
}

const absentQPN = 77

// forge has the port of a link take a control message in the name of its peer: by one that knows the Q_Key of the
// port, which is that of all peers.
func (l *link) forge(kind uint8, msg []byte) {
	b := make([]byte, grhLen+len(msg))
	b[20] = 0x45
	copy(b[32:], l.remote.AsSlice())
	copy(b[36:], l.local.AsSlice())
	copy(b[grhLen:], msg)
	wc := verbs.WC{ByteLen: uint32(len(b)), SrcQP: l.qpn, Flags: verbs.WCGRH | verbs.WCWithImm, ImmData: controlImm(kind)}
	l.port.e.received(l.port, &wc, b)
}

// TestQueriesMakeNoHandles: a host that only asks does not bring about that an adapter looks for it.
func TestQueriesMakeNoHandles(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(1)
	h.stop(0)
	h.start(1)
	for _, l := range h.asks(4) {
		h.engine(1).s.Call(func() { assert.False(t, l.valid) })
	}
	require.Zero(t, a.begun("CreateAH"))
}

// TestForgedProbesKeepNoShardWaiting: an adapter looks for a host that does not answer for a second. A bounded number
// of goroutines wait for that, and a probe in the name of such a host proves nothing.
func TestForgedProbesKeepNoShardWaiting(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(1)
	h.stop(0)
	h.start(1)
	e := h.engine(1)
	links := h.asks(2 * handlesAtOnce)
	release := a.hold("CreateAH")
	for range 2 {
		e.s.Post(func() {
			for _, l := range links {
				l.forge(controlProbe, make([]byte, 64))
			}
		})
	}
	a.turns()
	require.Eventually(t, func() bool { return a.begun("CreateAH") == handlesAtOnce }, patience, time.Millisecond)

	h.engine(1).s.Call(func() { // one that has answered does not wait for them
		l := links[slices.IndexFunc(links, func(l *link) bool { return l.job == nil })]
		l.valid = true
		assert.False(t, l.handle())
		l.valid = false
	})
	require.Eventually(t, func() bool { return a.begun("CreateAH") == handlesAtOnce+1 }, patience, time.Millisecond)

	release()
	require.Eventually(t, func() bool { return a.over("CreateAH") == handlesAtOnce+1 }, patience, time.Millisecond)
	asked := 0
	require.Eventually(t, func() bool {
		asked = 0
		e.s.Call(func() {
			for _, l := range links {
				assert.False(t, l.valid, "nothing has come back from there")
				if !l.asked.IsZero() {
					asked++
				}
			}
		})
		return asked == handlesAtOnce
	}, patience, time.Millisecond, "those that could be made have sent what waited")
	e.s.Call(func() {
		var b [cookieLen]byte
		binary.BigEndian.PutUint64(b[8:], links[0].cookie^1)
		links[0].forge(controlEcho, b[:])
		assert.False(t, links[0].valid, "a guess")
		binary.BigEndian.PutUint64(b[8:], links[0].cookie)
		links[0].forge(controlEcho, b[:])
		assert.True(t, links[0].valid)
	})
	h.start(0)
	h.forget(0)
	h.meet()
	h.pass(0, h.ends(0, 4000, 53), []byte("carried"))
}

// TestProofWaitsForTheHandle: a proof goes on when the handle is there, however many probes it has missed.
func TestProofWaitsForTheHandle(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	a := h.adapt(0)
	h.start(0)
	h.forget(0)
	release := a.hold("CreateAH")
	h.want(0)
	require.Eventually(t, func() bool { return a.begun("CreateAH") == 1 }, patience, time.Millisecond)
	a.turns()
	require.False(t, h.d[0].Peer(pairAddrs[1], 0).Capable)
	release()
	h.meet()
	h.pass(0, h.ends(0, 4000, 53), []byte("carried"))
}

// TestProbedLinkIsValidByItsEcho: a link that only a query has made takes datagrams after the first probe of its
// peer, which has echoed ours by then.
func TestProbedLinkIsValidByItsEcho(t *testing.T) {
	onBoth(t, func(t *testing.T, kind report.DeviceKind) {
		h := newHosts(t, kind)
		h.meet()
		e := h.engine(1)
		links := func(fn func(l *link)) {
			e.s.Call(func() {
				for _, l := range e.peers[pairAddrs[0]].links {
					fn(l)
				}
			})
		}
		links(func(l *link) { l.valid, l.asked, l.cookie = false, time.Time{}, l.cookie+1 })
		h.engine(0).s.Call(func() { h.engine(0).peers[pairAddrs[1]].cur.probe(cookieLen) })
		require.Eventually(t, func() bool {
			valid := true
			links(func(l *link) { valid = valid && l.valid })
			return valid
		}, patience, time.Millisecond)
		h.pass(0, h.ends(0, 4000, 53), []byte("taken"))
	})
}
