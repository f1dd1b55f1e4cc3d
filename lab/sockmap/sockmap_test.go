package sockmap

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestSockmap: bytes of connections in the maps arrive, by the programs.
func TestSockmap(t *testing.T) {
	for name, c := range map[string]struct {
		attach func(string) (*Programs, error)
		used   func(Counters) bool
	}{
		"redirect": {Redirect, func(c Counters) bool { return c.Redirected > 0 && c.Received == 0 }},
		"watch":    {Watch, func(c Counters) bool { return c.Redirected == 0 && c.Received > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			n := testnet.Start(t, testnet.Config{})
			group, err := testnet.NewCgroup(fmt.Sprintf("smcgwt-%d-%s", os.Getpid(), name))
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, group.Kill())
				require.NoError(t, group.Close())
			})
			p, err := c.attach(group.Path)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, p.Close()) })
			h := n.Host("h1")
			h.Within(group)
			_, err = h.StartApp("serve", "transfer=[::]:7001")
			require.NoError(t, err)
			for _, to := range []string{h.AddrPort4(7001).String(), h.AddrPort6(7001).String()} {
				before, err := p.Counters()
				require.NoError(t, err)
				e, err := h.RunApp(t.Context(), "transfer", "-up", "300000", "-down", "300000", "-to", to, "-timeout", (10 * time.Second).String())
				require.NoError(t, err, "%+v", e)
				require.EqualValues(t, 300000, e.Received)
				after, err := p.Counters()
				require.NoError(t, err)
				require.True(t, c.used(Counters{
					after.Sent - before.Sent, after.Redirected - before.Redirected, after.Received - before.Received,
				}), "%+v, %+v", before, after)
			}
		})
	}
}
