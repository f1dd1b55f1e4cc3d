package e2e

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of TestFallbackPolicy, by the rule that concerns them.
const (
	userPort   = 7102
	groupPort  = 7103
	peerPort   = 7104
	neverPort  = 2379 // on the never-list
	namedPort  = 6443 // on the never-list; a rule names it
	serverPort = 7105 // the server's policy passes it
	testUID    = 4242
)

// TestFallbackPolicy checks what this host decides before a SYN leaves, and what the server's decides before it is
// accepted.
func TestFallbackPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	group, err := testnet.NewCgroup(fmt.Sprintf("smcgwt-%d-fallback", os.Getpid()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, group.Close()) })
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		w.serve(h)
		w.listen(h, "echo", userPort, groupPort, peerPort, neverPort, namedPort, serverPort)
	}
	w.up(w.h1, settings{Policy: fmt.Sprintf(`
  - { name: user, match: { ports: [%d], users: [%d] }, action: accelerate }
  - { name: group, match: { ports: [%d], cgroups: [%q] }, action: accelerate }
  - { name: peer, match: { ports: [%d], peers: [10.77.0.3/32, "fd77::3/128"] }, action: accelerate }
  - { name: named, match: { ports: [%d] }, action: accelerate }
  - { name: none, match: { ports: [%d, %d, %d, %d] }, action: pass }
  - { name: every, match: { peers: [10.77.0.0/24, "fd77::/64"] }, action: accelerate }
`, userPort, testUID, groupPort, group.Name, peerPort, namedPort, userPort, groupPort, peerPort, plainPort)})
	w.up(w.h2, settings{Policy: fmt.Sprintf(`
  - { name: server, match: { ports: [%d] }, action: pass }
  - { name: every, match: { ports: [%d, %d, %d, %d, %d] }, action: accelerate }
`, serverPort, userPort, groupPort, peerPort, neverPort, namedPort)})

	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		native := func(h *testnet.Host, port uint16, client, server told) {
			t.Helper()
			fallback{w: w, t: t, from: w.h1, to: addr(h, port), client: client, server: server}.ping()
		}
		native(w.h3, echoPort, remote("peer_no_option"), nothing)
		native(w.h2, plainPort, local("policy"), nothing)
		native(w.h2, neverPort, local("never_list"), nothing)
		w.carried(t, w.h1, addr(w.h2, namedPort))
		native(w.h2, serverPort, remote("peer_no_option"), local("policy"))

		native(w.h2, peerPort, local("policy"), nothing)
		native(w.h3, peerPort, remote("peer_no_option"), nothing)

		native(w.h2, userPort, local("policy"), nothing)
		w.carriedAs(t, addr(w.h2, userPort), func(c *testnet.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: testUID, Gid: testUID}
		})
		native(w.h2, groupPort, local("policy"), nothing)
		w.carriedAs(t, addr(w.h2, groupPort), group.Hold)

		if !v6(addr(w.h2, 1)) { // IPv4 through an IPv6 socket is IPv4
			for port, client := range map[uint16]told{
				plainPort: local("policy"), neverPort: local("never_list"), peerPort: local("policy"),
			} {
				fallback{w: w, t: t, from: w.h1, to: addr(w.h2, port), args: []string{"-mapped"}, client: client}.ping()
			}
		}
	})
}

// carriedAs makes a connection that is carried because of its user or cgroup.
func (w *world) carriedAs(t *testing.T, to string, as func(*testnet.Cmd)) {
	t.Helper()
	var e apps.Event
	w.inTime(func() bool {
		cmd := w.h1.AppCommand(t.Context(), "hold", "-to", to)
		as(cmd)
		p, err := w.h1.StartCmd(cmd)
		require.NoError(t, err)
		e = pinged(t, p)
		leaves(t, p)
		return !w.foundLate(e)
	})
	w.carriedBy(e, w.via)
}

// TestFallbackSwitched checks the mode observe and the verbs off and on, whose state survives a restart.
func TestFallbackSwitched(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	g1, g2 := w.upBoth(settings{})
	set := func(g *gw, verb string) {
		t.Helper()
		g.says(verb)
	}
	native := func(t *testing.T, to string, client, server told) {
		t.Helper()
		fallback{w: w, t: t, from: w.h1, to: to, client: client, server: server}.ping()
	}
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		to := addr(w.h2, echoPort)
		w.carried(t, w.h1, to)
		set(g1, "off")
		require.Equal(t, report.ModeOff, g1.status().Mode)
		native(t, to, local("off"), nothing)
		set(g1, "on")
		require.Equal(t, report.ModeEnforce, g1.status().Mode)
		w.carried(t, w.h1, to)
		set(g2, "off")
		native(t, to, remote("peer_no_option"), local("off"))
		set(g2, "on")
		w.carried(t, w.h1, to)
	})
	set(g1, "off")
	g1 = w.restart(w.h1, settings{})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		require.Equal(t, report.ModeOff, g1.status().Mode)
		native(t, addr(w.h2, echoPort), local("off"), nothing)
	})
	set(g1, "on")
	w.restart(w.h2, settings{Mode: "observe"})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		native(t, addr(w.h2, echoPort), remote("peer_no_option"), local("mode"))
	})
	w.restart(w.h1, settings{Mode: "observe"})
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		native(t, addr(w.h2, echoPort), local("mode"), local("mode")) // observe counts what arrives, offered or not
		native(t, addr(w.h2, plainPort), local("policy"), nothing)
	})
}
