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
