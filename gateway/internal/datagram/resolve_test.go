package datagram

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

// TestDestination: truncated or foreign control messages name no address.
func TestDestination(t *testing.T) {
	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	for want, oob := range map[netip.Addr][]byte{
		v4: unix.PktInfo4(&unix.Inet4Pktinfo{Addr: v4.As4(), Spec_dst: [4]byte{1, 2, 3, 4}}),
		v6: unix.PktInfo6(&unix.Inet6Pktinfo{Addr: v6.As16()}),
	} {
		got, ok := destination(oob)
		require.True(t, ok)
		require.Equal(t, want, got)
		got, ok = destination(append(unix.UnixRights(1), oob...))
		require.True(t, ok)
		require.Equal(t, want, got)
		for n := range oob[:unix.CmsgLen(unix.SizeofInet4Pktinfo)] {
			_, ok := destination(oob[:n])
			require.False(t, ok, n)
		}
	}
}

func FuzzDestination(f *testing.F) {
	f.Add(unix.PktInfo4(&unix.Inet4Pktinfo{}))
	f.Add(unix.PktInfo6(&unix.Inet6Pktinfo{}))
	f.Fuzz(func(t *testing.T, oob []byte) {
		if a, ok := destination(oob); ok {
			require.True(t, a.IsValid())
		}
	})
}

// TestGRHEnds: what the device writes in place of the global route header.
func TestGRHEnds(t *testing.T) {
	b := make([]byte, grhLen)
	require.Zero(t, grhEnds(b))
	b[20] = 0x45
	copy(b[32:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	require.Equal(t, addrPair{local: ends4.dst.Addr(), remote: ends4.src.Addr()}, grhEnds(b))
	b[0] = 0x60
	src, dst := ends6.src.Addr().As16(), ends6.dst.Addr().As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	require.Equal(t, addrPair{local: ends6.dst.Addr(), remote: ends6.src.Addr()}, grhEnds(b))
	b[0] = 0x10
	require.Zero(t, grhEnds(b))
}

// TestIDsRest: no id comes again too soon, however fast datagrams are.
func TestIDsRest(t *testing.T) {
	now := time.Unix(1, 0)
	ids := pieceIDs{next: 5000}
	last := map[uint16]time.Time{}
	refused := 0
	for range 5 << idBits {
		id, ok := ids.take(now)
		if !ok {
			refused++
			now = now.Add(time.Millisecond)
			continue
		}
		if at, again := last[id]; again {
			require.GreaterOrEqual(t, now.Sub(at), idRest, "id %d", id)
		}
		last[id] = now
	}
	require.NotZero(t, refused)
	require.Len(t, last, 1<<idBits)
}

// TestDatagramPortAnswersFromWhereItWasAsked: one socket, many addresses. Only a
// gateway with a way to us gets more than a refusal, and nothing is longer than
// what was asked.
func TestDatagramPortAnswersFromWhereItWasAsked(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.stop(0)
	h.stop(1)
	h.anywhere = true
	h.start(1)
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(pairAddrs[0], 0)))
	require.NoError(t, err)
	defer c.Close()
	to := netip.AddrPortFrom(pairAddrs[1], h.port)
	e := h.engine(1)
	_, err = c.WriteToUDPAddrPort(resolve.AppendResolve(nil, &resolve.Resolve{
		Nonce: resolve.QueryNonce{7}, MinVersion: negotiate.MinVersion, MaxVersion: negotiate.Version, GatewayID: [16]byte{9}, Target: to,
	}), to)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return h.stats(1).Resolution.Ignored == 1 }, 30*time.Second, time.Millisecond, "a port of any user")
	clc := ebpf.Tuple{Local: netip.AddrPortFrom(pairAddrs[1], 1), Remote: netip.AddrPortFrom(pairAddrs[0], 1)}
	h.g[1].engine.Load().News(clc, c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), [16]byte{9})
	ask := func(r resolve.Resolve) []byte {
		r.MinVersion, r.MaxVersion = negotiate.MinVersion, negotiate.Version
		q := resolve.AppendResolve(nil, &r)
		_, err := c.WriteToUDPAddrPort(q, to)
		require.NoError(t, err)
		b := make([]byte, 4096)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			require.NoError(t, err)
			require.Equal(t, to, from)
			if _, query := resolve.QueryNonceOf(b[:n]); !query { // it asks back
				require.Less(t, n, len(q))
				return b[:n]
			}
		}
	}
	r := resolve.Resolve{
		Nonce: resolve.QueryNonce{1}, GatewayID: [16]byte{9}, Target: to,
		Offers: []resolve.UDOffer{{
			Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 77, QKey: 5, GID: verbs.GIDOf(pairAddrs[0]), UDPPort: h.soft,
		}},
	}
	answer, err := resolve.ParseResolved(ask(r))
	require.NoError(t, err)
	require.Equal(t, r.Nonce, answer.Nonce)
	require.Equal(t, c.LocalAddr().(*net.UDPAddr).AddrPort(), answer.Observed)
	require.Len(t, answer.Offers, 1)
	require.Equal(t, verbs.GIDOf(pairAddrs[1]), verbs.GID(answer.Offers[0].GID))
	require.Zero(t, answer.Offers[0].QKey>>31)

	e.s.Call(func() {
		p := e.peers[pairAddrs[0]]
		assert.Len(t, p.links, 1)
		assert.False(t, p.links[0].valid, "anybody may have asked")
		assert.Nil(t, p.cur)
	})
	require.Zero(t, h.d[1].Peer(pairAddrs[0], 0))

	r.Offers = nil
	refusal, err := resolve.ParseRefused(ask(r))
	require.NoError(t, err)
	require.Equal(t, negotiate.ReasonNoCommonCarrier, refusal.Reason)

	// A peer that names a queue pair at another address gets no link.
	r.Offers = []resolve.UDOffer{{
		Kind: negotiate.CarrierSoft, MTU: 1024, QPN: 78, QKey: 5, GID: verbs.GIDOf(netip.MustParseAddr("127.77.0.9")), UDPPort: h.soft,
	}}
	ask(r)
	e.s.Call(func() { assert.Len(t, e.peers[pairAddrs[0]].links, 1) })
}
