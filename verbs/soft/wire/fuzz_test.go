package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// What parses comes out the same when written again, reserved bits excepted.
func FuzzParse(f *testing.F) {
	for _, o := range known() {
		f.Add(packet(full(o), []byte("hello")))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		payload, err := h.Parse(b)
		if err != nil {
			require.Nil(t, payload)
			require.Equal(t, Header{}, h)
			return
		}
		pad := int(b[1] >> 4 & 3)
		require.Equal(t, len(b), h.Len()+len(payload)+pad+ICRCLen)
		hdr := h.Append(nil, len(payload))
		require.Len(t, hdr, h.Len())
		require.Equal(t, only(h), h)
		body, err := again.Parse(packet(h, payload))
		require.NoError(t, err)
		require.Equal(t, h, again)
		require.True(t, bytes.Equal(payload, body))
	})
}

// A sender's ICRC verifies by definition and at a receiver, and no longer once
// any one covered bit is flipped.
func FuzzICRC(f *testing.F) {
	f.Add(uint8(RCSendOnly), uint16(0), []byte("ping"), uint16(100), uint8(0))
	f.Add(uint8(RCCompareSwap), uint16(0x1234), []byte{}, uint16(4), uint8(3))
	f.Add(uint8(UDSendOnly), uint16(0xffff), bytes.Repeat([]byte{7}, 257), uint16(9), uint8(0xff))
	f.Fuzz(func(t *testing.T, opcode uint8, id uint16, payload []byte, flip uint16, noise uint8) {
		o := Opcode(opcode)
		if !o.Known() || len(payload) > 4096 {
			return
		}
		h := full(o)
		for _, flow := range []Flow{flow4, flow6} {
			c := NewICRC(flow)
			d := seal(&c, id, h.Append(nil, len(payload)), payload)
			d[4] = noise
			requireICRC(t, build(flow, id, noise, d))

			bit := int(flip) % (8 * len(d))
			d[bit/8] ^= 1 << (bit % 8)
			for _, expected := range []uint16{id, 0} {
				_, ok := c.Verify(expected, d)
				require.Equal(t, bit/8 == 4, ok, "bit %d", bit)
			}
		}
	})
}
