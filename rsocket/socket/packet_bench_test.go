package socket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Neither sending nor receiving makes garbage.
func TestPacketAllocations(t *testing.T) {
	eachPair(t, PacketListenConfig{}, func(t *testing.T, p *packetPair) {
		p.resolve(t)
		require.NoError(t, p.b.SetReadDeadline(time.Time{}))
		require.NoError(t, p.a.SetReadDeadline(time.Time{}))
		b, in := make([]byte, 100), make([]byte, 200)
		n := testing.AllocsPerRun(200, func() {
			_, _ = p.a.WriteToUDPAddrPort(b, p.toB)
			_, from, _ := p.b.ReadFromUDPAddrPort(in)
			_, _ = p.b.WriteToUDPAddrPort(b, from)
			_, _, _ = p.a.ReadFromUDPAddrPort(in)
		})
		require.Zero(t, n)
	})
}

func BenchmarkPacketRoundTrip(b *testing.B) {
	for name, make1 := range packetPairs {
		b.Run(name, func(b *testing.B) {
			p := make1(b, PacketListenConfig{})
			p.resolve(b)
			require.NoError(b, p.b.SetReadDeadline(time.Time{}))
			require.NoError(b, p.a.SetReadDeadline(time.Time{}))
			go func() {
				in := make([]byte, 200)
				for {
					n, from, err := p.b.ReadFromUDPAddrPort(in)
					if err != nil {
						return
					}
					_, _ = p.b.WriteToUDPAddrPort(in[:n], from)
				}
			}()
			out, in := make([]byte, 64), make([]byte, 200)
			for b.Loop() {
				require.NoError(b, p.a.SetReadDeadline(time.Now().Add(time.Second)))
				if _, err := p.a.WriteToUDPAddrPort(out, p.toB); err != nil {
					b.Fatal(err)
				}
				if _, _, err := p.a.ReadFromUDPAddrPort(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// As many datagrams as one goroutine can send; the metric says how many of them arrived.
func BenchmarkPacketSend(b *testing.B) {
	for name, make1 := range packetPairs {
		b.Run(name, func(b *testing.B) {
			p := make1(b, PacketListenConfig{RecvBuffer: 8 << 20, RecvSlots: 1024})
			p.resolve(b)
			require.NoError(b, p.b.SetReadDeadline(time.Time{}))
			got := make(chan int)
			go func() {
				in, n := make([]byte, 2048), 0
				for {
					if _, _, err := p.b.ReadFromUDPAddrPort(in); err != nil {
						got <- n
						return
					}
					n++
				}
			}()
			out := make([]byte, 1000)
			b.SetBytes(int64(len(out)))
			for b.Loop() {
				if _, err := p.a.WriteToUDPAddrPort(out, p.toB); err != nil {
					b.Fatal(err)
				}
			}
			time.Sleep(50 * time.Millisecond)
			require.NoError(b, p.b.SetReadDeadline(time.Now()))
			b.ReportMetric(100*float64(<-got)/float64(b.N), "%arrived")
		})
	}
}
