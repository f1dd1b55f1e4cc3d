package socket

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// A datagram by queue pair cannot claim another peer's source.
func TestPacketForeignSource(t *testing.T) {
	for _, name := range []string{"soft IPv4", "soft IPv6"} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			p := packetPairs[name](t, PacketListenConfig{})
			p.resolve(t)
			d := p.a.devices[0]
			forge := func(source netip.AddrPort) {
				require.NoError(t, d.vec.Do(func() {
					slot, err := d.take(false)
					require.NoError(t, err)
					b := append(rsocket.DatagramHeader{Source: source}.Append(d.sendSlot(slot)[:0]), "forged"...)
					p.a.mu.Lock()
					peer := p.a.table.Peer(p.toB)
					p.a.mu.Unlock()
					d.leave(udSend{slot: slot, size: len(b), qpn: peer.QPN, handle: peer.Handle})
				}))
			}
			forge(ap("10.1.2.3:1000"))
			forge(ap("[2001:db8::1]:1000"))
			require.Eventually(t, func() bool { return p.b.Stats().Foreign == 2 }, 30*time.Second, time.Millisecond)
			forge(netip.AddrPortFrom(p.toA.Addr(), 0))
			forge(ap("0.0.0.0:5"))
			forge(ap("[ff02::1]:5"))
			require.Eventually(t, func() bool { return p.b.Stats().Malformed == 3 }, 30*time.Second, time.Millisecond)
			p.exchange(t, "genuine")
		})
	}
}

func eachUDPair(t *testing.T, f func(t *testing.T, p *packetPair)) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		if !p.ud {
			require.Empty(t, append(p.b.devices, p.a.devices[min(1, len(p.a.devices)):]...))
			return
		}
		p.resolve(t)
		f(t, p)
	})
}

// Without its queue pair a socket goes on over UDP.
func TestPacketQueuePairFails(t *testing.T) {
	eachUDPair(t, func(t *testing.T, p *packetPair) {
		d := p.a.devices[0]
		require.NoError(t, d.vec.Do(func() {
			require.NoError(t, d.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
		}))
		require.Eventually(t, func() bool { return d.qpn.Load() == 0 }, 30*time.Second, time.Millisecond)
		before := [2]PacketStats{p.a.Stats(), p.b.Stats()}
		for i := range 10 {
			p.exchange(t, fmt.Sprint(i))
		}
		require.Equal(t, before[0].SentUDP+10, p.a.Stats().SentUDP)
		require.Equal(t, before[1].SentUDP+10, p.b.Stats().SentUDP)
	})
}

// A send that fails takes the next ones along, no more.
func TestPacketSendFails(t *testing.T) {
	eachUDPair(t, func(t *testing.T, p *packetPair) {
		d := p.a.devices[0]
		require.NoError(t, d.vec.Do(func() {
			slot, err := d.take(false)
			require.NoError(t, err)
			d.mu.Lock()
			d.filling--
			d.mu.Unlock()
			p.a.mu.Lock()
			peer := p.a.table.Peer(p.toB)
			p.a.mu.Unlock()
			require.NoError(t, d.qp.PostSend(&verbs.SendWR{
				WRID: wrSend | uint64(slot), Opcode: verbs.WRSend, SGList: []verbs.SGE{{Addr: d.mr.Addr(), Length: 100, LKey: d.mr.LKey() ^ 1<<20}},
				AH: peer.Handle, RemoteQPN: peer.QPN, RemoteQKey: rsocket.DatagramQKey,
			}))
		}))
		require.Eventually(t, func() bool { return p.a.Stats().SendErrors == 1 }, 30*time.Second, time.Millisecond)
		before := p.a.Stats()
		p.exchange(t, "goes on")
		require.Equal(t, before.SentUD+1, p.a.Stats().SentUD)
	})
}

// searchingPD looks for one address, when an address handle is made for it, until it is told to stop.
type searchingPD struct {
	verbs.PD
	lost            verbs.GID
	searching, stop chan struct{}
}

func (p *searchingPD) CreateAH(a verbs.AHAttr) (verbs.AH, error) {
	if a.DGID != p.lost {
		return p.PD.CreateAH(a)
	}
	p.searching <- struct{}{}
	<-p.stop
	return nil, verbs.ErrInvalid
}

// While a device looks for a peer to make an address handle, its vector carries what others send: datagrams, those for
// the peer that it looks for among them, and streams.
func TestPacketSearchHoldsUpNothing(t *testing.T) {
	leak.Check(t)
	lost := netip.MustParseAddr("127.0.0.77")
	s := &searchingPD{lost: verbs.GIDOf(lost), searching: make(chan struct{}, 1), stop: make(chan struct{})}
	dev := softDevices(t, []string{"127.0.0.1"}, []string{"127.0.0.2"})
	x, y := stackOn(t, dev[0], func(pd verbs.PD) verbs.PD { s.PD = pd; return s }), stackOn(t, dev[1], nil)
	p := pairOn(t, PacketListenConfig{}, x, y, "127.0.0.1:0", "127.0.0.2:0")
	t.Cleanup(func() { close(s.stop) })
	p.resolve(t)
	a, b := (&duo{t: t, a: x, b: y}).managed(netip.MustParseAddr("127.0.0.2"))(ConnConfig{}, ConnConfig{})
	soon(t, a, b)

	peer, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(lost, 0)), net.UDPAddrFromAddrPort(p.toA))
	require.NoError(t, err)
	defer peer.Close()
	require.NoError(t, peer.SetDeadline(time.Now().Add(patience)))
	h := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: 5, Addr: lost}
	_, err = peer.Write(append(h.Append(nil), "lost"...))
	require.NoError(t, err)
	p.recv(t, p.a, "lost")
	waitFor(t, "no search", s.searching)
	before := p.a.Stats()
	for i := range 20 {
		p.exchange(t, fmt.Sprint(i))
		_, err = a.Write([]byte{byte(i)})
		require.NoError(t, err)
		_, err = io.ReadFull(b, make([]byte, 1))
		require.NoError(t, err)
		_, err = p.a.WriteToUDPAddrPort([]byte{byte(i)}, unmapped(peer.LocalAddr().(*net.UDPAddr).AddrPort()))
		require.NoError(t, err)
		_, err = peer.Read(make([]byte, 100))
		require.NoError(t, err)
	}
	require.Equal(t, before.SentUD+20, p.a.Stats().SentUD)
	require.Equal(t, before.SentUDP+20, p.a.Stats().SentUDP)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
