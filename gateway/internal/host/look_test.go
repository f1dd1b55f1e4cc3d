package host

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

func look4(ttl, tos byte) []byte {
	b := make([]byte, 40)
	b[0], b[1], b[8] = 0x45, tos, ttl
	return b
}

func look6(ttl, tos byte) []byte {
	b := make([]byte, 60)
	b[0], b[1], b[7] = 0x60|tos>>4, tos<<4, ttl
	return b
}

func TestLook(t *testing.T) {
	for ttl := range 256 {
		want := Look{TTL: byte(ttl), TOS: byte(255 - ttl)}
		require.Equal(t, want, LookOf(look4(want.TTL, want.TOS)))
		require.Equal(t, want, LookOf(look6(want.TTL, want.TOS)))
	}
	for n := range 20 {
		require.Zero(t, LookOf(look4(9, 9)[:n]))
	}
	for n := range 40 {
		require.Zero(t, LookOf(look6(9, 9)[:n]))
	}
	for ttl, near := range map[uint8]uint8{64: 255, 63: 254, 1: 192, 128: 255, 127: 254, 65: 192, 255: 255, 254: 254, 0: 255} {
		require.Equal(t, near, Look{TTL: ttl}.Near(), ttl)
	}
}

func FuzzLook(f *testing.F) {
	f.Add(look4(1, 2))
	f.Add(look6(1, 2))
	f.Fuzz(func(t *testing.T, b []byte) { require.GreaterOrEqual(t, LookOf(b).Near(), uint8(128)) })
}

func TestDress(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		family := map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[v6]
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		get := func() (ttl, tos int) {
			level, opts := unix.SOL_IP, [2]int{unix.IP_TTL, unix.IP_TOS}
			if v6 {
				level, opts = unix.SOL_IPV6, [2]int{unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS}
			}
			ttl, err = unix.GetsockoptInt(fd, level, opts[0])
			require.NoError(t, err)
			tos, err = unix.GetsockoptInt(fd, level, opts[1])
			require.NoError(t, err)
			return ttl, tos
		}
		require.NoError(t, Look{}.Dress(fd, v6))
		ttl, tos := get()
		require.Equal(t, []int{64, 0}, []int{ttl, tos})
		require.NoError(t, Look{TTL: 254, TOS: 0xb8 | 1}.Dress(fd, v6))
		ttl, tos = get()
		require.Equal(t, []int{254, 0xb8}, []int{ttl, tos})
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
