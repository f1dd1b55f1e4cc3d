package e2e

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// family has the words of rules for one of the two families.
type family struct {
	V6                    bool
	IP                    string // the keyword of nft
	NFT                   string // family of an nft table
	ICMP, Unreachable     string // protocol, and the answer that refuses
	Localhost, Sidecar    string
	Client, Alias, Server string
	Third, Virtual        string // of a host without gateway; of a service on the server's host
	Pod, PodNet, Inner    string // behind the server's host; Inner: the host's own address there
	Cluster, Headless     string // addresses of a cluster's services, which no host has
}

func (c *hostCell) families() []family {
	return []family{
		{
			IP: "ip", NFT: "ip", ICMP: "icmp", Unreachable: "icmp-port-unreachable",
			Localhost: "127.0.0.1/32", Sidecar: "127.0.0.6",
			Client: "10.77.0.1", Alias: "10.77.0.101", Server: "10.77.0.2", Third: "10.77.0.3", Virtual: "10.77.0.102",
			Pod: "10.77.100.2", PodNet: "10.77.100.0/24", Inner: "10.77.100.1", Cluster: "10.96.0.10", Headless: "10.96.0.11",
		},
		{
			V6: true, IP: "ip6", NFT: "ip6", ICMP: "icmpv6", Unreachable: "icmp6-port-unreachable",
			Localhost: "::1/128", Sidecar: "::6",
			Client: "fd77::1", Alias: "fd77::101", Server: "fd77::2", Third: "fd77::3", Virtual: "fd77::102",
			Pod: "fd77:0:0:64::2", PodNet: "fd77:0:0:64::/64", Inner: "fd77:0:0:64::1", Cluster: "fd96::10", Headless: "fd96::11",
		},
	}
}

// Dest formats an address with a port as iptables and nft want it.
func (f family) Dest(addr string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
}

// Bits returns the length of an address in bits.
func (f family) Bits() int {
	if f.V6 {
		return 128
	}
	return 32
}

// words executes the text of rules as a template for one family.
func (f family) words(t *testing.T, rules string) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, template.Must(template.New("rules").Parse(rules)).Execute(&b, f))
	return b.String()
}

// restore loads rules into a host by iptables-restore, for both families. The backend is nft or legacy.
func (c *hostCell) restore(h *testnet.Host, backend, rules string) {
	c.t.Helper()
	for _, f := range c.families() {
		program := "iptables-" + backend + "-restore"
		if f.V6 {
			program = "ip6tables-" + backend + "-restore"
		}
		c.feed(h, f.words(c.t, rules), program, "--noflush")
	}
}

// nft loads rules into a host, once for each family.
func (c *hostCell) nft(h *testnet.Host, rules string) {
	c.t.Helper()
	for _, f := range c.families() {
		require.NoError(c.t, h.NFT(f.words(c.t, rules)))
	}
}

// run runs a program on a host, which must succeed.
func (c *hostCell) run(h *testnet.Host, name string, args ...string) {
	c.t.Helper()
	c.feed(h, "", name, args...)
}

// each runs a command, whose words are templates, for both families.
func (c *hostCell) each(h *testnet.Host, command string) {
	c.t.Helper()
	for _, f := range c.families() {
		words := strings.Fields(f.words(c.t, command))
		c.run(h, words[0], words[1:]...)
	}
}

func (c *hostCell) feed(h *testnet.Host, input, name string, args ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	cmd := h.Command(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(c.dir, "xtables.lock"))
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s %v on %s: %s\n%s", name, args, h.Name, out, input)
}

// nftHas requires a text in a host's nft rules.
func (c *hostCell) nftHas(h *testnet.Host, text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	rules, err := h.Run(ctx, "nft", "list", "ruleset")
	require.NoError(c.t, err)
	require.Contains(c.t, rules, text)
}

func (c *hostCell) sysctl(h *testnet.Host, name, value string) {
	c.t.Helper()
	require.NoError(c.t, h.SetSysctl(name, value))
}
