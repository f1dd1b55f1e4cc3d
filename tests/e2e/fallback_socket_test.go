package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFallbackSockets checks sockets and hosts whose SYN asks for what a gateway could not take over: MPTCP, TCP Fast
// Open, ECN, no timestamps.
func TestFallbackSockets(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	_, err := w.h2.StartApp("serve", "-tfo", "first=[::]:7130", "echo=[::]:7131")
	require.NoError(t, err)
	_, err = w.h2.StartApp("serve", "-mptcp", "echo=[::]:7132")
	require.NoError(t, err)
	require.NoError(t, w.h1.SetSysctl("net.ipv4.tcp_fastopen", "3"))
	require.NoError(t, w.h2.SetSysctl("net.ipv4.tcp_fastopen", "3"))
	ports := settings{Ports: "7000, 7130, 7131, 7132"}
	w.upBoth(ports)
	options := local("syn_options")

	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		native := func(port uint16, args ...string) {
			t.Helper()
			fallback{w: w, t: t, from: w.h1, to: addr(w.h2, port), args: args, client: options}.ping()
		}
		native(echoPort, "-mptcp") // to a server without MPTCP
		native(7132, "-mptcp")
		w.carried(t, w.h1, addr(w.h2, 7132)) // the server's MPTCP does not prevent it

		native(7131, "-tfo") // asks for a cookie
		// Sends data with its SYN, by the first write. It is bound, so that the app knows its address before.
		native(7131, "-tfo", "-bind", addr(w.h1, 21000))
		w.carried(t, w.h1, addr(w.h2, 7131))

		set := func(name, value string) func() {
			old, err := w.h1.Sysctl(name)
			require.NoError(t, err)
			require.NoError(t, w.h1.SetSysctl(name, value))
			return func() { require.NoError(t, w.h1.SetSysctl(name, old)) }
		}
		undo := set("net.ipv4.tcp_ecn", "1")
		native(echoPort)
		undo()
		undo = set("net.ipv4.tcp_timestamps", "0")
		native(echoPort)
		undo()
		w.carried(t, w.h1, addr(w.h2, echoPort))
	})

	// The server's settings do not matter: a gateway connects to it as any client does.
	require.NoError(t, w.h2.SetSysctl("net.ipv4.tcp_timestamps", "0"))
	require.NoError(t, w.h2.SetSysctl("net.ipv4.tcp_ecn", "1"))
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		w.carried(t, w.h1, addr(w.h2, echoPort))
	})
}
