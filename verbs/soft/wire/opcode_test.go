package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The traits must say what the names say.
func TestTraitsFollowNames(t *testing.T) {
	require.Len(t, known(), 38)
	seen := map[string]bool{}
	for _, o := range known() {
		name := o.String()
		require.False(t, seen[name], name)
		seen[name] = true
		has := func(part string) bool { return strings.Contains(name, part) }
		is := func(traits Traits) bool { return o.Traits()&traits != 0 }

		require.Equal(t, has("_SEND_"), is(Send), name)
		require.Equal(t, has("_WRITE_"), is(Write), name)
		require.Equal(t, has("_READ_"), is(Read), name)
		require.Equal(t, has("_IMMEDIATE"), is(HasImm), name)
		require.Equal(t, has("_INVALIDATE"), is(HasIETH), name)
		require.Equal(t, has("ATOMIC") || has("SWAP") || has("ADD"), is(Atomic), name)
		require.Equal(t, has("RESPONSE") || has("ACKNOWLEDGE"), is(Response), name)
		require.Equal(t, o != CNP && !is(Response), is(Request), name)

		require.Equal(t, has("_MIDDLE"), is(Middle), name)
		require.False(t, is(Middle) && is(Start|End), name)
		parted := has("_FIRST") || has("_MIDDLE") || has("_LAST")
		require.Equal(t, o != CNP && (has("_FIRST") || !parted), is(Start), name)
		require.Equal(t, o != CNP && (has("_LAST") || !parted), is(End), name)

		transport, _, _ := strings.Cut(name, "_")
		require.Equal(t, map[string]Transport{"RC": RC, "UC": UC, "UD": UD, "CNP": CNPClass}[transport], o.Transport(), name)
	}
}

func TestUnknownOpcode(t *testing.T) {
	o := Opcode(0x4c)
	require.Equal(t, "opcode 0x4c", o.String())
	require.Equal(t, RD, o.Transport())
	require.False(t, o.Known())
	require.Zero(t, o.Traits())
}

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		a, b uint32
		want int32
	}{
		{0x000000, 0xffffff, 1},
		{0xffffff, 0x000000, -1},
		{0x000005, 0x000003, 2},
		{0x7fffff, 0x000000, 1<<23 - 1},
		{0x800000, 0x000000, -8388608},
		{0x123456, 0x123456, 0},
	} {
		require.Equal(t, c.want, PSNDiff(c.a, c.b), "%06x %06x", c.a, c.b)
		require.Equal(t, c.a, PSNAdd(c.b, int(c.want)))
	}
	require.Equal(t, uint32(0), PSNAdd(0xffffff, 1))
	require.Equal(t, uint32(0xffffff), PSNAdd(0, -1))
}

func TestSyndrome(t *testing.T) {
	for s := range 256 {
		s := Syndrome(s)
		kinds := 0
		for _, is := range []bool{s.IsACK(), s.IsRNR(), s.IsNAK()} {
			if is {
				kinds++
			}
		}
		switch {
		case s <= 0x1f:
			require.True(t, s.IsACK())
		case s <= 0x3f:
			require.True(t, s.IsRNR())
			require.Equal(t, uint8(s-0x20), s.RNRTimer())
		case s >= 0x60 && s <= 0x7f:
			require.True(t, s.IsNAK())
		default:
			require.Zero(t, kinds, "reserved %#x", uint8(s))
			continue
		}
		require.Equal(t, 1, kinds)
	}
	require.True(t, ACK.IsACK())
	require.Equal(t, uint8(14), (RNR | 14).RNRTimer())
	for i, nak := range []Syndrome{NAKSequence, NAKInvalidRequest, NAKRemoteAccess, NAKRemoteOperational, NAKInvalidRD} {
		require.True(t, nak.IsNAK())
		require.Equal(t, Syndrome(0x60+i), nak)
	}
}
