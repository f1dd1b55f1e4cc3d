package sysfs

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func attr(typ uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// app is a struct dcb_app.
func app(selector, priority byte, protocol uint16) []byte {
	return attr(dcbAppData, binary.NativeEndian.AppendUint16([]byte{selector, priority}, protocol)...)
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// answer is what the kernel says of a port with PFC on priorities 3 and 5.
func answer() []byte {
	pfc := append([]byte{8, 1<<3 | 1<<5, 0, 0}, make([]byte, 132)...)
	ieee := join(
		attr(1, make([]byte, 59)...), // struct ieee_ets
		attr(dcbIEEEPFC, pfc...),
		attr(dcbIEEEApp, join(app(selectDSCP, 3, 26), app(1, 4, 0x8906), app(selectDSCP, 6, 48))...),
	)
	return join([]byte{unix.AF_UNSPEC, dcbIEEEGet, 0, 0}, attr(dcbIfname, []byte("eth0\x00")...), attr(dcbIEEE|unix.NLA_F_NESTED, ieee...))
}

func TestPriorities(t *testing.T) {
	require.Equal(t, &Priorities{PFC: []int{3, 5}, DSCP: map[int]int{26: 3, 48: 6}}, parsePriorities(answer()))
	require.Nil(t, priorities("lo"), "the loopback device has no DCB")
	require.Nil(t, priorities("no-such-device"))
}

func TestPrioritiesTruncated(t *testing.T) {
	whole := answer()
	for n := range whole {
		if p := parsePriorities(whole[:n]); p != nil {
			require.LessOrEqual(t, len(p.DSCP), 2)
		}
	}
	require.Nil(t, parsePriorities(whole[:20]))
}

func FuzzPriorities(f *testing.F) {
	f.Add(answer())
	f.Add([]byte{0, dcbIEEEGet, 0, 0, 4, 0, 13, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := parsePriorities(b)
		if p == nil {
			return
		}
		require.LessOrEqual(t, len(p.PFC), 8)
		require.LessOrEqual(t, len(p.DSCP), maxApps)
	})
}
