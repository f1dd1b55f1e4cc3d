package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// told is what one gateway must report about a connection that stayed native: one of several words where events race,
// or nothing if the gateway never learned of the connection.
type told []word

// word is the reason why a connection is native, and which side decided.
type word struct{ reason, by string }

var nothing told

func local(reason string) told  { return told{{reason, report.DecidedLocal}} }
func remote(reason string) told { return told{{reason, report.DecidedRemote}} }

// or adds alternatives.
func (t told) or(other told) told { return slices.Concat(t, other) }

// afterRetry is when a lost SYN is retransmitted.
const afterRetry = time.Second

// fallback is a connection that must not be carried, with what follows from it.
type fallback struct {
	w       *world
	t       *testing.T
	from    *testnet.Host
	to      string
	args    []string  // further arguments of the client
	client  told      // what the gateway of from reports
	server  told      // what the gateway of the server reports, if it runs
	retried bool      // connect() succeeds only with its second SYN
	raw     bool      // the server's gateway relays the client's bytes unchanged
	until   time.Time // if not zero: how long is remembered what decides
}

// ping makes the connection and checks everything: the application gets its bytes in time, nothing is carried, and
// the gateways report why. One that finds a gateway late is made again.
func (f fallback) ping() apps.Event {
	f.t.Helper()
	return f.inTime(f.connect)
}

// once is ping for a connection of which the gateways remember something, so that it cannot just be made again. It tells
// whether a gateway, or the test itself, was late; then it proves nothing, and nothing is checked.
func (f fallback) once() (late bool) {
	f.t.Helper()
	before := f.w.totals()
	e := f.connect()
	if f.foundLate(e) || f.forgotten() {
		return true
	}
	f.took(e)
	f.check(e, before)
	return false
}

// connect makes the connection and checks what the application reads.
func (f fallback) connect() apps.Event {
	f.t.Helper()
	e := f.w.mustApp(f.from, append([]string{"ping", "-count", "3", "-size", "20000", "-to", f.to}, f.args...)...)
	require.EqualValues(f.t, 60000, e.Received)
	if e.Remote == "" { // Fast Open: connect() had nothing to do
		e.Remote = f.to
	}
	return e
}

// lateTries is how often a connection that finds a gateway late is made again: on a shared machine that proves nothing.
const lateTries = 4

// inTime makes a connection, again if it finds a gateway late, and checks what the gateways report.
func (f fallback) inTime(connect func() apps.Event) apps.Event {
	f.t.Helper()
	for try := 0; ; try++ {
		before := f.w.totals()
		e := connect()
		if try < lateTries && f.foundLate(e) {
			if !f.w.gateways[f.from].knows(from(e), local(gatewayStale).or(remote("peer_no_option"))) { // these are not remembered
				f.w.flush()
			}
			continue
		}
		f.took(e)
		f.check(e, before)
		return e
	}
}

// foundLate waits for the reports that must come, the client's first: if the client's gateway was late, the server's
// has nothing to report.
func (f fallback) foundLate(e apps.Event) bool {
	f.t.Helper()
	for h, g := range f.w.gateways {
		if h == f.from && f.client != nil && g.wasLate(from(e), f.client) {
			return true
		}
	}
	for h, g := range f.w.gateways {
		if h != f.from && f.server != nil && g.wasLate(at(e), f.server) {
			return true
		}
	}
	return false
}

// wasLate waits until the gateway reports a connection, and tells whether a gateway had no time for it. What the test wants
// to be reported is not that.
func (g *gw) wasLate(match func(report.ConnInfo) bool, want told) bool {
	g.w.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if all := g.everything(match); len(all) > 0 {
			return !want.among(all) && lateWords().among(all)
		}
	}
	return false
}

// forgotten tells whether what is remembered may have been forgotten.
func (f fallback) forgotten() bool { return !f.until.IsZero() && time.Now().After(f.until) }

// took checks whether connect() had to wait for the kernel's retry.
func (f fallback) took(e apps.Event) {
	f.t.Helper()
	if f.retried {
		require.Equal(f.t, 1, e.Repeated, "%+v", e)
		require.GreaterOrEqual(f.t, time.Duration(e.ConnectMicros)*time.Microsecond, afterRetry)
		return
	}
	require.Zero(f.t, e.Repeated, "%+v", e)
}

// check requires the right reports about the connection of e.
func (f fallback) check(e apps.Event, before map[*testnet.Host]report.Status) {
	f.t.Helper()
	for h, g := range f.w.gateways {
		want, match, raw := f.server, at(e), f.raw
		if h == f.from {
			want, match, raw = f.client, from(e), false
		}
		g.counted(f.t, before[h], g.tells(f.t, match, want, raw), raw)
	}
}

// totals returns the counters of the running gateways.
func (w *world) totals() map[*testnet.Host]report.Status {
	w.t.Helper()
	all := map[*testnet.Host]report.Status{}
	for h, g := range w.gateways {
		all[h] = g.status()
	}
	return all
}

// tells requires that the gateway lists the connection once, as wanted, and returns how. Events of the programs reach
// the gateway by a timer.
func (g *gw) tells(t *testing.T, match func(report.ConnInfo) bool, want told, raw bool) told {
	t.Helper()
	var got told
	list := func() told {
		got = nil
		for _, c := range g.everything(match) {
			got = append(got, word{c.Reason, c.DecidedBy})
			if c.Carrier != report.CarrierNone && !raw {
				got = append(got, word{"carried by", string(c.Carrier)})
			}
		}
		return got
	}
	if len(want) == 0 {
		require.Empty(t, list(), "%s knows of the connection", g.h.Name)
		return nothing
	}
	for end := time.Now().Add(30 * time.Second); len(list()) != 1 || !slices.Contains(want, got[0]); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			require.Failf(t, "wrong reason", "%s tells %v instead of %v\n%s", g.h.Name, got, want, g.dump())
		}
	}
	return got
}

// knows tells whether the gateway reports this about a connection now.
func (g *gw) knows(match func(report.ConnInfo) bool, what told) bool {
	return what.among(g.everything(match))
}

// among tells whether one of the connections has one of these words.
func (t told) among(all []report.ConnInfo) bool {
	return slices.ContainsFunc(all, func(c report.ConnInfo) bool { return slices.Contains(t, word{c.Reason, c.DecidedBy}) })
}

// everything lists what the gateway reports of some connections: live, ended and native.
func (g *gw) everything(match func(report.ConnInfo) bool) []report.ConnInfo {
	var found []report.ConnInfo
	for _, c := range g.conns("--all") {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

// counted requires that status has counted one more fallback, for the reason that the gateway reports, and nothing
// carried.
func (g *gw) counted(t *testing.T, before report.Status, is told, raw bool) {
	t.Helper()
	now := g.status()
	if !raw {
		require.Equal(t, before.FlowsTotal, now.FlowsTotal, "%s carried something", g.h.Name)
	}
	more := fallbacksSince(before, now)
	expected := map[string]uint64{}
	for _, w := range is {
		expected[w.reason] = 1
	}
	if !maps.Equal(expected, more) {
		require.Failf(t, "wrong counters", "fallbacks_total of %s: %v instead of %v\n%s", g.h.Name, more, expected, g.dump())
	}
}

// fallbacksSince counts the fallbacks between two reports by reason.
func fallbacksSince(before, now report.Status) map[string]uint64 {
	more := map[string]uint64{}
	for reason, n := range now.FallbacksTotal {
		if d := n - before.FallbacksTotal[reason]; d > 0 {
			more[reason] = d
		}
	}
	return more
}

// carried makes a connection that must be carried, as carriedApp does.
func (w *world) carried(t *testing.T, from *testnet.Host, to string) apps.Event {
	t.Helper()
	return w.carriedApp(t, from, "ping", "-count", "3", "-to", to)
}

// carriedApp runs a client app whose connection must be carried. One that finds a gateway late, on a machine too busy
// for it, proves nothing: it makes the gateways forget that, and runs the app again.
func (w *world) carriedApp(t *testing.T, from *testnet.Host, args ...string) apps.Event {
	t.Helper()
	return w.carriedAppBy(t, w.via, from, args...)
}

// carriedAppBy is carriedApp for a given carrier.
func (w *world) carriedAppBy(t *testing.T, via report.Carrier, from *testnet.Host, args ...string) apps.Event {
	t.Helper()
	var e apps.Event
	w.inTime(func() bool {
		e = w.mustApp(from, args...)
		return !w.foundLateBy(e, via)
	})
	w.carriedBy(e, via)
	return e
}

// inTime takes a step until it finds no gateway late, at most lateTries times more. Before each of these the gateways forget
// what they remember. It tells whether the last was in time.
func (w *world) inTime(step func() bool) bool {
	w.t.Helper()
	for try := 0; !step(); try++ {
		if try == lateTries {
			return false
		}
		w.flush()
	}
	return true
}

// noneLate takes a step, and tells whether no connection was native meanwhile because a gateway was late.
func (w *world) noneLate(step func()) bool {
	w.t.Helper()
	late := w.late()
	step()
	return w.late() == late
}

// foundLate waits for both reports of a connection, and tells whether it is native because a gateway was late, or
// relayed because its queue pair was.
func (w *world) foundLate(e apps.Event) bool {
	w.t.Helper()
	return w.foundLateBy(e, w.via)
}

// foundLateBy is foundLate for a connection that a given carrier must carry.
func (w *world) foundLateBy(e apps.Event, via report.Carrier) bool {
	w.t.Helper()
	late := lateWords()
	if via != report.CarrierRelay {
		late = late.or(local("carrier_unreachable"))
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		known := true
		for h, match := range map[*testnet.Host]func(report.ConnInfo) bool{w.h1: from(e), w.h2: at(e)} {
			all := w.gateways[h].everything(match)
			if late.among(all) {
				return true
			}
			known = known && len(all) > 0
		}
		if known {
			return false
		}
	}
	return false
}

// gatewayStale is the reason of a connection that found a gateway late.
const gatewayStale = "gateway_stale"

// lateReasons are those of connections for which a gateway had no time.
func lateReasons() []string {
	return []string{gatewayStale, "handshake_timeout", "proposal_late", "offer_unanswered"}
}

// lateWords are what gateways report about such a connection.
func lateWords() (all told) {
	for _, reason := range lateReasons() {
		all = all.or(local(reason)).or(remote(reason))
	}
	return all
}

// late returns how many connections were native because a gateway was late, as both ends count them.
func (w *world) late() (n uint64) {
	w.t.Helper()
	for _, g := range w.gateways {
		reasons := g.status().FallbacksTotal
		for _, reason := range lateReasons() {
			n += reasons[reason]
		}
	}
	return n
}

// flush makes the gateways forget every refusal.
func (w *world) flush() {
	w.t.Helper()
	for _, g := range w.gateways {
		asks(g, (*admin.Client).FlushPeers)
	}
}

// restart replaces the gateway of a host by one with other settings.
func (w *world) restart(h *testnet.Host, s settings) *gw {
	w.t.Helper()
	if g := w.gateways[h]; g != nil {
		g.stop()
	}
	return w.up(h, s)
}

// down stops the gateway of a host in order.
func (w *world) down(h *testnet.Host) {
	w.t.Helper()
	w.gateways[h].stop()
	delete(w.gateways, h)
}

// box configures the middlebox for what some hosts send, all of them if none is named, until the end of the test.
func (w *world) box(t *testing.T, b testnet.Box, hosts ...*testnet.Host) {
	t.Helper()
	if len(hosts) == 0 {
		hosts = w.net.Hosts()
	}
	for _, h := range hosts {
		require.NoError(t, h.SetBox(b))
	}
	t.Cleanup(func() { require.NoError(w.t, w.net.SetBox(testnet.Box{})) })
}

// offers counts the SYNs with an offer that have passed the switch.
func (w *world) offers() uint64 {
	w.t.Helper()
	s, err := w.net.BoxStats()
	require.NoError(w.t, err)
	return s.Offers
}

// peer returns what a gateway remembers about an address and the port of a service, or 0.
func (g *gw) peer(a netip.Addr, port uint16) (report.PeerInfo, bool) {
	g.w.t.Helper()
	for _, p := range asks(g, (*admin.Client).Peers).Peers {
		if p.Address == a && p.Port == port && (p.State == report.PeerIncapable || p.State == report.PeerBlackholed) {
			return p, true
		}
	}
	return report.PeerInfo{}, false
}

// prefix parses an address with its prefix length.
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// hostOf returns the address part of "address:port".
func hostOf(to string) netip.Addr { return netip.MustParseAddrPort(to).Addr() }

func v6(to string) bool { return strings.HasPrefix(to, "[") }

// listen starts more servers on a host.
func (w *world) listen(h *testnet.Host, mode string, ports ...uint16) *testnet.Proc {
	w.t.Helper()
	args := []string{"serve"}
	for _, p := range ports {
		args = append(args, fmt.Sprintf("%s=[::]:%d", mode, p))
	}
	p, err := h.StartApp(args...)
	require.NoError(w.t, err)
	return p
}

// accepted waits until a server has accepted a connection from an address and
// returns what it saw.
func accepted(t *testing.T, p *testnet.Proc, remote string) apps.Event {
	t.Helper()
	ev, err := p.WaitEvents(patience(t), 1, func(e apps.Event) bool { return e.Event == "accepted" && e.Remote == remote })
	require.NoError(t, err)
	return ev[0]
}

// patience bounds the wait for something that must come.
func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
