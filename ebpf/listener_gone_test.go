package ebpf

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A gateway that dies may leave the SYN of an application on its way to a listener
// that is gone. It stays without an answer: the kernel does not send the reset of
// a server that was never asked, and no program of the client's own host that
// listens on the same port accepts it. When the programs have left, the
// application's own retransmission finds the server.
func TestListenerGone(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		for _, local := range []bool{false, true} {
			t.Run(v.name+map[bool]string{false: "", true: " same port here"}[local], func(t *testing.T) {
				listenerGone(t, v.network, net.JoinHostPort(v.addr, "6379"), local)
			})
		}
	}
}

func listenerGone(t *testing.T, network, target string, local bool) {
	h1, h2 := newPair(t)
	h2.echo("6379")
	if local {
		h1.echo("6379")
	}
	d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
	ln := h1.listen(d1, network)
	app := h1.connectAsync(target)
	f, _, back := met(t, d1, d2)
	require.NoError(t, d1.Transition(f.Tuple, f.ISN, StateCompleting, StateNegotiating))
	require.NoError(t, ln.Close())
	require.NoError(t, d1.InjectApp(f.SYN))
	select {
	case a := <-app:
		require.Fail(t, "somebody answered", "%+v", a)
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, d2.Delete(back, f.ISN, StateWire))
	require.NoError(t, d1.Close())
	a := <-app
	require.NoError(t, a.err)
	exchange(t, a.c)
	require.NoError(t, a.c.Close())
}
