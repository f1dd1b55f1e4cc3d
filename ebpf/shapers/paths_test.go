package shapers

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestPaths: what shapes on the way of a connection is seen, and what does not is not taken for it.
func TestPaths(t *testing.T) {
	testnet.Require(t, "root", "tc", "ip")
	for _, c := range []struct {
		tc     string // arguments of tc qdisc; empty: none
		shaped bool
	}{
		{"", false},
		{"add dev v0 root fq_codel", false},
		{"add dev v0 root pfifo", false},
		{"add dev v1 root tbf rate 1mbit burst 10kb latency 50ms", false}, // the other device
		{"add dev v0 root tbf rate 1mbit burst 10kb latency 50ms", true},
		{"add dev v0 root handle 1: htb default 1", true},
		{"add dev v0 root netem delay 1ms", true},
		{"add dev v0 root fq maxrate 1mbit", true},
		{"add dev v0 root fq", false},
	} {
		testnet.InNamespace(t, func() {
			for _, args := range []string{
				"link add v0 type veth peer name v1", "addr add 10.9.0.1/24 dev v0", "link set v0 up", "link set v1 up", "link set lo up",
			} {
				out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
				require.NoError(t, err, "%s", out)
			}
			if c.tc != "" {
				out, err := exec.Command("tc", append([]string{"qdisc"}, strings.Fields(c.tc)...)...).CombinedOutput()
				if err != nil && strings.Contains(string(out), "qdisc kind is unknown") {
					t.Logf("the kernel has not: %s", c.tc)
					return
				}
				require.NoError(t, err, "%s: %s", c.tc, out)
			}
			p, err := Open()
			require.NoError(t, err)
			defer p.Close()
			q := Path{Netns: p.cookie, Local: netip.MustParseAddr("10.9.0.1"), Remote: netip.MustParseAddr("10.9.0.2")}
			require.Equal(t, c.shaped, p.Shaped(q, 0), c.tc)
			require.Equal(t, c.shaped, p.Shaped(q, 0), "remembered")
			q.Remote = q.Local // by lo
			require.False(t, p.Shaped(q, 0))
			require.Len(t, p.seen, 2)
		})
	}
}
