package wire

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// captured reads the RoCEv2 frames of a capture: classic pcap, little-endian,
// Ethernet.
func captured(t testing.TB, name string) (frames []frame) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	le, be := binary.LittleEndian, binary.BigEndian
	require.Equal(t, uint32(0xa1b2c3d4), le.Uint32(b))
	require.Equal(t, uint32(1), le.Uint32(b[20:]))
	for b = b[24:]; len(b) > 0; {
		n, size := le.Uint32(b[8:]), le.Uint32(b[12:])
		require.Equal(t, size, n, "a frame cut by the capture")
		ethernet := b[16 : 16+n]
		b = b[16+n:]
		ip := frame(ethernet[14:])
		var total int
		switch be.Uint16(ethernet[12:]) {
		case 0x0800:
			if ip[9] != 17 {
				continue
			}
			total = int(be.Uint16(ip[2:]))
		case 0x86dd:
			if ip[6] != 17 {
				continue
			}
			total = ipv6Len + int(be.Uint16(ip[4:]))
		default:
			continue
		}
		if be.Uint16(ip.udp()[2:]) == 4791 {
			frames = append(frames, ip[:total])
		}
	}
	return frames
}

// What the kernel's rxe sent to another rxe while rsockets, UD pings and SMC-R
// ran over it: every frame verifies, and comes out the same when written from
// what was read.
func TestCaptures(t *testing.T) {
	for name, want := range map[string]int{
		"guest-to-host-cm.pcap": 10,
		"rstream-rxe.pcap":      63,
		"rstream-rxe-ipv6.pcap": 63,
		"smcr-v2-rxe.pcap":      44,
		"udpong-rxe.pcap":       11,
	} {
		t.Run(name, func(t *testing.T) {
			frames := captured(t, name)
			require.Len(t, frames, want)
			for i, f := range frames {
				requireICRC(t, f)
				var h Header
				payload, err := h.Parse(f.payload())
				require.NoError(t, err, "frame %d", i)
				c := NewICRC(f.flow())
				require.Equal(t, f.payload(), seal(&c, f.id(), h.Append(nil, len(payload)), payload), "frame %d: %v", i, h.Opcode)
			}
		})
	}
}
