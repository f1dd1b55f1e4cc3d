package testnet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The special sockets must be what they claim to be.
func TestAppSockets(t *testing.T) {
	n, h1, h2 := start(t, Config{})
	const mptcpKind, tfoKind = 30, 34
	in := sniff(t, h2)
	require.NoError(t, h2.SetSysctl("net.ipv4.tcp_fastopen", "3"))
	startApp(t, h2, "serve", "-mptcp", "-tfo", "transfer=[::]:7000")
	kind := func(k byte) func(v frameView) bool {
		return func(v frameView) bool {
			for o := v.options(); len(o) > 0; {
				switch {
				case o[0] == k:
					return v.flags()&(flagSYN|flagACK) == flagSYN
				case o[0] == 1:
					o = o[1:]
				case o[0] == 0 || len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
					return false
				default:
					o = o[o[1]:]
				}
			}
			return false
		}
	}
	to := h2.AddrPort4(7000).String()
	e := runApp(t, h1, "transfer", "-mptcp", "-to", to, "-up", "100000", "-down", "100000")
	require.Equal(t, 1, e.OK, e.Error)
	_, ok := in.next(t, arrives, kind(mptcpKind))
	require.True(t, ok)

	for range 2 { // the first asks for a cookie, the second has data
		e = runApp(t, h1, "transfer", "-tfo", "-to", to, "-up", "1000", "-down", "1000")
		require.Equal(t, 1, e.OK, e.Error)
	}
	v, ok := in.next(t, arrives, kind(tfoKind))
	require.True(t, ok)
	require.Equal(t, v.end, v.ipLast, "no data without a cookie")
	v, ok = in.next(t, arrives, kind(tfoKind))
	require.True(t, ok)
	require.Greater(t, v.ipLast, v.end, "data on the SYN")

	e = runApp(t, h1, "transfer", "-to", to, "-up", "1000")
	require.Equal(t, 1, e.OK, e.Error)
	require.Zero(t, boxStats(t, n).Offers)
}
