package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestFound checks that gateways are found without knowing their configuration, in any namespace and mode, also one
// that drains and one that does not answer.
func TestFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	found := func(pid int) (f machine.Found) {
		list, err := machine.Find(t.Context())
		require.NoError(t, err)
		for _, f = range list {
			if f.PID == pid {
				require.False(t, f.Here)
				return f
			}
		}
		return machine.Found{}
	}
	g := w.up(w.h1, settings{})
	daemon := g.daemon()
	require.Equal(t, g.socket, found(daemon).Path)
	c := admin.NewClient(found(daemon).Socket)
	defer c.Close()
	res, err := c.SetOff(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, "off", res.Verb)
	require.EqualValues(t, "off", g.status().Mode)
	require.Zero(t, found(g.proc.Pid()).PID, "the guardian is not a gateway")
	g.frozen(func() {
		f := found(g.proc.Pid())
		require.Equal(t, machine.Found{PID: g.proc.Pid(), Namespace: f.Namespace}, f)
	})
	g.stop()
	require.Zero(t, found(daemon).PID)

	g = w.up(w.h2, settings{Mode: "observe"}) // observe has no devices
	daemon = g.daemon()
	require.Equal(t, g.socket, found(daemon).Path)
	require.Zero(t, found(g.proc.Pid()).PID, "the guardian is not a gateway")
	g.frozen(func() {
		f := found(daemon)
		require.Equal(t, machine.Found{PID: daemon, Namespace: f.Namespace}, f)
	})
	g.stop()
	require.Zero(t, found(daemon).PID)
}
