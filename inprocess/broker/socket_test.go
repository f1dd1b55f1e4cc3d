package broker

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestRoleWhileBytesAreUnderWay: the side of an end can be told while what it has sent is not acknowledged, and while more
// waits to be sent, whatever the library says.
func TestRoleWhileBytesAreUnderWay(t *testing.T) {
	testnet.Require(t, "root", "ip")
	testnet.InNamespace(t, func() {
		ip := func(args ...string) { require.NoError(t, exec.Command("ip", args...).Run()) }
		ip("link", "set", "lo", "up")
		client, server := connection(t, "tcp4")
		for role, c := range map[Role]*net.TCPConn{RoleClient: client, RoleServer: server} {
			_, err := c.Write([]byte("acknowledged"))
			require.NoError(t, err)
			require.Equal(t, role, roleOf(t, c, 1-role))
		}
		ip("link", "set", "lo", "down")
		for role, c := range map[Role]*net.TCPConn{RoleClient: client, RoleServer: server} {
			_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			for size := 1000; ; size = 1 << 20 {
				_, err := c.Write(make([]byte, size))
				require.Equal(t, role, roleOf(t, c, 1-role), size)
				if err != nil {
					break
				}
			}
		}
	})
}

func roleOf(t *testing.T, c *net.TCPConn, says Role) (r Role) {
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		r = roleAt(int(fd), info, says)
	}))
	return r
}
