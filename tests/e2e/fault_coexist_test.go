package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// company is something else on the hosts that uses the network.
type company struct {
	name string
	// before sets it up before the gateways start.
	before func(t *testing.T, w *world)
	// meanwhile runs repeatedly while connections come, go and stay.
	meanwhile func(t *testing.T, w *world)
	// pause is the time between two calls of meanwhile.
	pause time.Duration
	// after checks what is left once all connections have ended.
	after func(t *testing.T, w *world)
	// native: connections need not be carried while it is there.
	native bool
	// idle: new connections would fail, natively too.
	idle bool
}

// TestFaultCoexistence checks that, beside other programs on the same hooks, firewalls, translation, a busy network
// manager and changing devices, connections are carried or native, and none breaks.
func TestFaultCoexistence(t *testing.T) {
	t.Parallel()
	for _, c := range matrix.Cells(t, companies(), 3) {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			c.coexist(t)
		})
	}
}

func (c company) coexist(t *testing.T) {
	w := newWorld(t, testnet.Config{})
	server := w.serve(w.h2)
	if c.before != nil {
		c.before(t, w)
	}
	via := strings.TrimPrefix(string(w.via), "rdma-")
	s := settings{Carriers: via, NegativeCache: "200ms"}
	w.upBoth(s)
	before := w.gateways[w.h1].status().FlowsTotal[w.via]
	traffic := w.startTraffic(t, server, !c.idle)
	if c.meanwhile != nil {
		for range 3 {
			c.meanwhile(t, w)
			traffic.counted.faults(1)
			time.Sleep(c.pause)
		}
	}
	traffic.end(t, w)
	carried := w.gateways[w.h1].status().FlowsTotal[w.via] - before
	t.Logf("carried %d, fallbacks %v", carried, w.gateways[w.h1].status().FallbacksTotal)
	if !c.native {
		require.Positive(t, carried)
	}
	if c.after != nil {
		c.after(t, w)
	}
	if !c.native {
		w.flush()
		families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) { w.carried(t, w.h1, addr(w.h2, echoPort)) })
	}
}

// traffic is applications at work until told to end: on both families a connection that stays and, if the network
// allows it, bulk and short connections.
type traffic struct {
	counted *tally
	stay    []*testnet.Proc
	stop    chan struct{}
	done    chan error
	loops   int
}

func (w *world) startTraffic(t *testing.T, server *testnet.Proc, busy bool) *traffic {
	t.Helper()
	tr := &traffic{counted: newTally(t), stop: make(chan struct{}), done: make(chan error, 8)}
	for i, h := range []string{w.h2.AddrPort4(0).String(), w.h2.AddrPort6(0).String()} {
		to := func(port int) string { return strings.TrimSuffix(h, ":0") + fmt.Sprintf(":%d", port) }
		p, err := w.h1.StartApp("ping", "-count", "60", "-gap", "50ms", "-size", "3000", "-limit", "60s", "-to", to(echoPort))
		require.NoError(t, err)
		_, err = server.WaitEvents(t.Context(), i+1, func(e apps.Event) bool { return e.Event == "accepted" && e.Mode == "echo" })
		require.NoError(t, err)
		tr.stay = append(tr.stay, p)
		if !busy {
			continue
		}
		for _, args := range [][]string{
			{"transfer", "-up", "30000000", "-down", "30000000", "-limit", "60s", "-to", to(transferPort)},
			{"churn", "-count", "40", "-parallel", "4", "-size", "30000", "-limit", "60s", "-to", to(transferPort)},
		} {
			tr.loops++
			go func() { tr.done <- tr.loop(w, append(args, "-seed", fmt.Sprint(i+1))) }()
		}
	}
	return tr
}

// loop runs the same client repeatedly.
func (tr *traffic) loop(w *world, args []string) error {
	for {
		e, err := w.app(w.h1, 2*time.Minute, args...)
		tr.counted.result(e)
		if err != nil || e.Failed > 0 {
			return fmt.Errorf("%v: %w %+v", args, err, e)
		}
		select {
		case <-tr.stop:
			return nil
		default:
		}
	}
}

// end waits for everything and requires that nothing failed.
func (tr *traffic) end(t *testing.T, w *world) {
	t.Helper()
	close(tr.stop)
	for range tr.loops {
		if err := <-tr.done; err != nil {
			t.Error(err)
			w.aborted(t)
		}
	}
	for _, p := range tr.stay {
		e := result(t, p)
		tr.counted.result(e)
		require.Zero(t, e.Failed, "a connection that stayed: %+v", e)
	}
	require.Zero(t, tr.counted.failed())
}

// aborted logs what the gateways report of connections that ended badly.
func (w *world) aborted(t *testing.T) {
	for h, g := range w.gateways {
		for _, c := range g.conns("--all") {
			if c.End != report.EndClosed && c.End != report.EndNative {
				t.Logf("%s: %+v", h.Name, c)
			}
		}
	}
}

// on runs ip(8) commands on a host.
func on(t *testing.T, h *testnet.Host, lines ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, line := range lines {
		args := strings.Fields(line)
		_, err := h.Run(ctx, args[0], args[1:]...)
		require.NoError(t, err, line)
	}
}

const statefulFirewall = `table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state invalid counter drop
		ct state established,related accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		udp dport 4791 accept
		tcp dport 7000-7010 ct state new accept
	}
	chain output {
		type filter hook output priority 0; policy accept;
		ct state invalid counter drop
	}
	chain mangle {
		type filter hook postrouting priority mangle; policy accept;
		tcp flags syn tcp option maxseg size set rt mtu
	}
}`

// firewalls loads the firewall of both hosts, atomically replacing any other.
func firewalls(t *testing.T, w *world) {
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		require.NoError(t, h.NFT("flush ruleset\n"+onSoftPort(statefulFirewall)))
	}
}

const translation = `table inet nat {
	chain post {
		type nat hook postrouting priority 100;
		oifname "eth0" masquerade
	}
	chain pre {
		type nat hook prerouting priority -100;
		tcp dport 7777 redirect to :7000
	}
}`

func companies() []company {
	return []company{
		{name: "programs", before: neighbours},
		{name: "classic filters", before: func(t *testing.T, w *world) {
			for _, h := range []*testnet.Host{w.h1, w.h2} {
				on(t, h, "tc qdisc add dev eth0 root handle 1: htb default 1", "tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit",
					"tc qdisc add dev eth0 clsact", "tc filter add dev eth0 ingress u32 match u32 0 0 flowid 1:1",
					"tc filter add dev eth0 egress u32 match u32 0 0 flowid 1:1")
			}
		}},
		{name: "firewall", before: firewalls},
		{name: "masquerade", before: func(t *testing.T, w *world) {
			require.NoError(t, w.h1.NFT(translation))
			require.NoError(t, w.h2.NFT(translation))
		}},
		// The first one is loaded before any connection. A firewall that begins in the middle of a connection takes
		// what the server sends for a new connection, and refuses it until the client sends something: natively, too.
		{name: "firewall reloaded", pause: 300 * time.Millisecond, before: firewalls, meanwhile: firewalls},
		{name: "addresses", pause: 300 * time.Millisecond, meanwhile: func(t *testing.T, w *world) {
			for i, h := range []*testnet.Host{w.h1, w.h2} {
				on(t, h, fmt.Sprintf("ip addr add 10.77.0.%d/24 dev eth0", 120+i), fmt.Sprintf("ip addr add fd77::%d/64 dev eth0 nodad preferred_lft 0", 120+i),
					fmt.Sprintf("ip addr del 10.77.0.%d/24 dev eth0", 120+i), fmt.Sprintf("ip addr del fd77::%d/64 dev eth0", 120+i))
			}
		}},
		{name: "renewed", idle: true, pause: 500 * time.Millisecond, meanwhile: func(t *testing.T, w *world) {
			for i, h := range []*testnet.Host{w.h1, w.h2} {
				on(t, h, fmt.Sprintf("ip addr del 10.77.0.%d/24 dev eth0", i+1), fmt.Sprintf("ip addr add 10.77.0.%d/24 dev eth0", i+1),
					"ip route replace default via 10.77.0.254",
					fmt.Sprintf("ip addr del fd77::%d/64 dev eth0", i+1), fmt.Sprintf("ip addr add fd77::%d/64 dev eth0 nodad", i+1),
					"ip -6 route replace default via fd77::fe")
			}
		}},
		{name: "routes", pause: 300 * time.Millisecond, meanwhile: func(t *testing.T, w *world) {
			on(t, w.h1, "ip route add 10.77.0.2/32 dev eth0 metric 5", "ip -6 route add fd77::2/128 dev eth0 metric 5",
				"ip route flush cache", "ip route del 10.77.0.2/32 metric 5", "ip -6 route del fd77::2/128 metric 5",
				"ip rule add pref 5000 from 10.77.0.1 lookup main", "ip rule del pref 5000")
		}},
		// systemd-networkd removes rules and routes that it does not know.
		{name: "rules flushed", pause: 3 * time.Second, meanwhile: func(t *testing.T, w *world) {
			for _, h := range []*testnet.Host{w.h1, w.h2} {
				foreignRulesFlushed(t, h)
			}
		}},
		{name: "link", pause: time.Second, meanwhile: func(t *testing.T, w *world) {
			require.NoError(t, w.h1.SetLink(false))
			time.Sleep(700 * time.Millisecond)
			require.NoError(t, w.h1.SetLink(true))
		}},
		{name: "down and up", idle: true, pause: time.Second, meanwhile: func(t *testing.T, w *world) {
			on(t, w.h1, "ip link set eth0 down", "ip link set eth0 up", "ip addr replace fd77::1/64 dev eth0 nodad",
				"ip route replace default via 10.77.0.254", "ip -6 route replace default via fd77::fe")
		}},
		{name: "renamed", pause: time.Second, meanwhile: func(t *testing.T, w *world) {
			on(t, w.h1, "ip link set eth0 name lan0")
			time.Sleep(300 * time.Millisecond)
			on(t, w.h1, "ip link set lan0 name eth0")
		}},
		{name: "asymmetric", native: true, before: func(t *testing.T, w *world) {
			asymmetric(t, w)
		}},
		{name: "removed", pause: 500 * time.Millisecond, meanwhile: func(t *testing.T, w *world) {
			on(t, w.h1, "ip link add wan0 type veth peer name wan0 netns "+w.h2.Namespace(), "ip link set wan0 up", "ip addr add 10.79.0.1/24 dev wan0")
			on(t, w.h2, "ip link set wan0 up", "ip addr add 10.79.0.2/24 dev wan0")
			w.mustApp(w.h1, "ping", "-count", "3", "-to", fmt.Sprintf("10.79.0.2:%d", echoPort))
			on(t, w.h1, "ip link del wan0")
		}},
		{name: "containers", before: func(t *testing.T, w *world) {}, meanwhile: containers},
	}
}

// neighbours attaches other vendors' programs on both hosts.
func neighbours(t *testing.T, w *world) {
	var options uint64 // the first one writes it, the second finds it written
	t.Cleanup(func() { require.Positive(t, options) })
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		n, err := testnet.NewNeighbours(h)
		require.NoError(t, err)
		t.Cleanup(func() {
			seen, wrote, err := n.Counts()
			require.NoError(t, err)
			require.Positive(t, seen, "the neighbours of %s saw packets", h.Name)
			options += wrote
			require.NoError(t, n.Close())
		})
	}
}

// foreignRulesFlushed removes every rule but the kernel's own three, and every route in tables that those do not name.
func foreignRulesFlushed(t *testing.T, h *testnet.Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, family := range []string{"-4", "-6"} {
		out, err := h.Run(ctx, "ip", family, "rule", "show")
		require.NoError(t, err)
		for line := range strings.Lines(out) {
			pref, rest, _ := strings.Cut(line, ":")
			if pref == "0" || pref == "32766" || pref == "32767" {
				continue
			}
			if _, table, ok := strings.Cut(rest, "lookup "); ok {
				_, _ = h.Run(ctx, "ip", family, "route", "flush", "table", strings.Fields(table)[0])
			}
			on(t, h, "ip "+family+" rule del pref "+pref)
		}
	}
}

// asymmetric gives the hosts a second network. What h1 sends takes it; what h2 answers takes the first one.
func asymmetric(t *testing.T, w *world) {
	_, _, err := w.net.Cable(w.h1, w.h2, 1500)
	require.NoError(t, err)
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		for _, dev := range []string{"all", "eth0", "cable1"} {
			require.NoError(t, h.SetSysctl("net.ipv4.conf."+dev+".rp_filter", "0"))
		}
	}
	on(t, w.h1, "ip route add 10.77.0.2/32 via 10.78.1.2 dev cable1 src 10.77.0.1")
}

// containers makes connections from a container whose addresses are routed, from a masqueraded one, and into one,
// with the host's gateway between.
func containers(t *testing.T, w *world) {
	if w.net.Host("routed") != nil {
		return
	}
	routed, err := w.net.Behind(w.h1, "routed")
	require.NoError(t, err)
	masked, err := w.net.Behind(w.h1, "masked")
	require.NoError(t, err)
	inner, err := w.net.Behind(w.h2, "inner")
	require.NoError(t, err)
	require.NoError(t, w.h1.NFT(fmt.Sprintf(`table inet nat {
	chain post {
		type nat hook postrouting priority 100;
		ip saddr %s oifname "eth0" masquerade
		ip6 saddr %s oifname "eth0" masquerade
	}
}`, masked.Addr4, masked.Addr6)))
	w.listen(inner, "transfer", transferPort)
	for _, own := range []bool{false, true} {
		if own {
			for _, h := range []*testnet.Host{routed, masked, inner} {
				w.up(h, settings{NegativeCache: "200ms"})
			}
		}
		for _, from := range []*testnet.Host{routed, masked, w.h1} {
			for _, to := range []*testnet.Host{w.h2, inner} {
				families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
					e := w.mustApp(from, "churn", "-count", "20", "-parallel", "4", "-size", "30000", "-to", addr(to, transferPort))
					require.Equal(t, 20, e.OK)
				})
			}
		}
	}
	for _, h := range []*testnet.Host{routed, masked, inner} {
		t.Logf("%s: %v, fallbacks %v", h.Name, w.gateways[h].status().FlowsTotal, w.gateways[h].status().FallbacksTotal)
		w.down(h)
	}
}
