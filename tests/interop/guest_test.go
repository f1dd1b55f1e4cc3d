package interop

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuest checks what the other tests rely on: the device, its GIDs, and that programs of rdma-core reach each
// other on it.
func TestGuest(t *testing.T) {
	onKernels(t, func(t *testing.T, l *lab) {
		require.Contains(t, l.run(t, "uname", "-r"), string(l.series)+".")
		info := l.run(t, "ibv_devinfo", "-v")
		require.Contains(t, info, "PORT_ACTIVE")
		require.Regexp(t, `GID\[  1\]:\s+::ffff:`+l.guest.Addr4.String(), info)
		require.Regexp(t, `GID\[  2\]:\s+`+l.guest.Addr6.String(), info)

		server := l.start(t, "ibv_rc_pingpong", "-g", "1")
		require.Contains(t, l.run(t, "sh", "-c",
			"while ! ibv_rc_pingpong -g 1 127.0.0.1; do sleep .2; done"), "1000 iters in")
		require.NoError(t, server.Wait(t.Context()))

		l.startDatagram(t, "udpong", "-b", l.guest.Addr4.String())
		client := l.startDatagram(t, "udpong", "-s", l.guest.Addr4.String(), "-C", "5", "-S", "100", "-T", "e")
		ended(t, client)
		require.Regexp(t, `custom +100 +10 `, client.Output())
	})
}
