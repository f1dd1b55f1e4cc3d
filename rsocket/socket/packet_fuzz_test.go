package socket

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/resolution"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// What arrives from unknown peers, over UDP and at the queue pair, is delivered
// or dropped, and counted.
func FuzzPacketReceive(f *testing.F) {
	stranger := ap("127.0.0.1:9")
	data := rsocket.ResolveHeader{Op: rsocket.ResolveData, QPN: 0x123, Probes: true, Addr: stranger.Addr()}.Append(nil)
	f.Add(data, uint32(0), uint32(0), false)
	f.Add(append(data, "payload"...), uint32(0), uint32(0), false)
	grh := make([]byte, grhSize)
	copy(grh[32:], []byte{127, 0, 0, 1, 127, 0, 0, 1})
	ud := rsocket.DatagramHeader{Source: stranger}.Append(grh)
	for _, imm := range []uint32{0, 1, 2, 2 | 1000<<8, 77} {
		f.Add(append(ud, "payload"...), imm, uint32(0x123), true)
	}
	f.Add(ud[:grhSize+3], uint32(0), uint32(0), true)
	f.Add([]byte{}, uint32(0), uint32(0), true)

	s := softStacks(f, []string{"127.0.0.1"})
	c := listenPacket(f, PacketListenConfig{Stacks: s, RecvBuffer: 1 << 16, Destinations: 3}, "127.0.0.1:0")
	d := c.devices[0]
	sum := func() uint64 {
		st := c.Stats()
		return st.ReceivedUD + st.ReceivedUDP + st.ReceivedPlain + st.Overflow + st.Malformed + st.Foreign
	}
	f.Fuzz(func(t *testing.T, b []byte, imm, qpn uint32, byQP bool) {
		before := sum()
		quiet := false // neither a datagram nor a bad one
		if byQP {
			slot := make([]byte, d.recvLen)
			n := copy(slot, b)
			wc := verbs.WC{ByteLen: uint32(n), SrcQP: qpn, Flags: verbs.WCGRH, ImmData: imm}
			if imm != 0 {
				wc.Flags |= verbs.WCWithImm
			}
			require.NoError(t, d.vec.Do(func() { d.received(&wc, slot) }))
			what, _ := parseControl(imm)
			quiet = what == resolution.Probe || what == resolution.Echo
		} else {
			c.receivedUDP(b, stranger, netip.MustParseAddr("127.0.0.1"))
			h, _, err := rsocket.ParseResolveHeader(b)
			quiet = err == nil && h.Op == rsocket.ResolveCtrl
		}
		if quiet {
			require.LessOrEqual(t, sum()-before, uint64(1))
		} else {
			require.Equal(t, before+1, sum())
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(-1)))
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		for c.queue.Ready() {
			got := make([]byte, 1<<16)
			n, _, err := c.ReadFromUDPAddrPort(got)
			require.NoError(t, err)
			require.LessOrEqual(t, n, len(b))
			require.Equal(t, b[len(b)-n:], got[:n])
		}
		require.LessOrEqual(t, c.Stats().Destinations, 3)
	})
}

// The receive buffer against a slice of datagrams.
func FuzzPacketQueue(f *testing.F) {
	f.Add([]byte{5, 3, 0, 200, 1, 0, 0, 90, 90}, uint16(256))
	f.Fuzz(func(t *testing.T, ops []byte, size uint16) {
		q := newPacketQueue(int(size))
		type packet struct {
			from netip.AddrPort
			data []byte
		}
		var model []packet
		var counted atomic.Uint64
		bytes, pushed := 0, 0
		for i, op := range ops {
			if op == 0 {
				if len(model) == 0 {
					require.False(t, q.Ready())
					continue
				}
				p := make([]byte, 300)
				n, from, err := q.pop(p)
				require.NoError(t, err)
				require.Equal(t, model[0], packet{from, p[:n:n]})
				bytes -= n
				model = model[1:]
				continue
			}
			p := packet{netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i)), make([]byte, int(op)-1)}
			for j := range p.data {
				p.data[j] = byte(i + j)
			}
			fits := bytes+len(p.data) <= int(size) && len(model) < max(1, int(size)/packetRecord)
			require.Equal(t, fits, q.push(p.from, p.data, &counted))
			if fits {
				pushed++
				model, bytes = append(model, p), bytes+len(p.data)
			}
			require.EqualValues(t, pushed, counted.Load())
		}
	})
}
