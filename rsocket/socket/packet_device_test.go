package socket

import (
	"fmt"
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
	for _, name := range []string{"soft IPv4", "soft IPv6", "shm"} {
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
