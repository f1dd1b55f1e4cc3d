package netstack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/packet"
)

// tcpHeader is a TCP header that acknowledges ack, with options.
func tcpHeader(flags byte, ack uint32, options ...byte) []byte {
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	t := make([]byte, packet.TCPMinLen, packet.TCPMinLen+len(options))
	binary.BigEndian.PutUint32(t[8:], ack)
	t[12] = byte(len(t)+len(options)) / 4 << 4
	t[13] = flags
	return append(t, options...)
}

// outboundPacket is a packet with a payload of size bytes.
func outboundPacket(size int) *stack.PacketBuffer {
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, size))})
}

// Which acknowledgements wait. That none of the packets is kept longer than its
// flow is what the leak check at the end of the tests sees.
func TestHeldACK(t *testing.T) {
	var a heldACK
	quick := false
	hold := func(size int, header []byte) (held, fresh bool) {
		p := outboundPacket(size)
		defer p.DecRef()
		return a.hold(p, header, quick)
	}
	check := func(wantHeld, wantFresh bool, size int, header []byte) {
		t.Helper()
		held, fresh := hold(size, header)
		require.Equal(t, wantHeld, held, "held")
		require.Equal(t, wantFresh, fresh, "fresh")
	}
	check(true, true, 0, tcpHeader(packet.FlagACK, 100))
	check(true, false, 0, tcpHeader(packet.FlagACK, 200)) // in its place, and on the list already
	check(true, false, 0, tcpHeader(packet.FlagACK, 100+heldBytes))
	check(false, false, 0, tcpHeader(packet.FlagACK, 101+heldBytes)) // too much: leaves, for all
	require.Nil(t, a.pkt)
	a = heldACK{due: true}
	check(false, false, 5, tcpHeader(packet.FlagACK, 200))
	check(true, false, 0, tcpHeader(packet.FlagACK, 300))
	check(false, false, 7, tcpHeader(packet.FlagACK, 300))
	require.Nil(t, a.pkt, "data took it along")
	check(false, false, 0, tcpHeader(packet.FlagACK, 300)) // nothing new: a duplicate says something else
	check(false, false, 0, tcpHeader(packet.FlagACK, 400, packet.KindSACK, 10, 0, 0, 0, 0, 0, 0, 0, 0))
	check(false, false, 0, tcpHeader(packet.FlagACK|packet.FlagFIN, 500))
	check(false, false, 0, tcpHeader(packet.FlagACK|packet.FlagRST, 600))

	check(true, false, 0, tcpHeader(packet.FlagACK, 700))
	p := a.take()
	require.NotNil(t, p)
	p.DecRef()
	check(true, true, 0, tcpHeader(packet.FlagACK, 800))
	require.Nil(t, (&heldACK{}).take())

	quick = true
	check(false, false, 0, tcpHeader(packet.FlagACK, 900))
	require.Nil(t, a.pkt)
	quick = false
	check(true, false, 0, tcpHeader(packet.FlagACK, 1000))
	a.drop()
	require.Nil(t, a.pkt)
	check(false, false, 0, tcpHeader(packet.FlagACK, 1100)) // sent while the flow ended
	require.Nil(t, a.pkt)
}

// A flow keeps no packet beyond its end.
func TestRetiredFlowHoldsNothing(t *testing.T) {
	w := newWorld(t, worldOptions{})
	key := keyOf(Tuple{Local: netip.AddrPortFrom(server4, testPort), Remote: netip.AddrPortFrom(client4, 1000)})
	f := &flow{key: key, server: true, serve: &serving{}}
	require.NoError(t, w.srv.flows.put(f, w.srv.cfg.Limits))
	p := outboundPacket(0)
	g := &grown{}
	f.grow(g)
	held, _ := g.acks.hold(p, tcpHeader(packet.FlagACK, 100), false)
	p.DecRef()
	require.True(t, held)
	require.True(t, f.step(legForget))
	w.srv.retire(f)
	require.Nil(t, g.acks.pkt)
}
