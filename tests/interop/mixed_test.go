package interop

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
)

// mixedSize is how much a transfer moves each way.
const mixedSize = 4 << 20

// newMixed starts a host whose gateway has only soft, and a guest whose gateway has only the adapter. mixed is what
// the guest's configuration says about carrying between the two.
func newMixed(ctx context.Context, t *testing.T, mixed string) *machines {
	testnet.Require(t, "vm", "bpf", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	dir := t.TempDir()
	program := func(cgo, name, file string) string {
		file = filepath.Join(dir, file)
		build(ctx, t, cgo, "build", "-o", file, "github.com/smcgw/smcgw/cmd/"+name)
		return file
	}
	m := newGuest(ctx, t, program("1", "smcgw", "smcgw-hw"), program("0", "smcgw-lab", "smcgw-lab"))
	m.inHost(ctx, t, dir, program("0", "smcgw", "smcgw"), "hw: { mixed: on }\nfallback: { negative_cache: 1s }\n")

	serveIn(ctx, t, m.guest)
	gatewayIn(ctx, t, m.guest, adapterSettings{rule: datagramRule, more: "hw: { mixed: " + mixed + " }\n"}.text())
	return m
}

// TestMixedCarries checks that a host without an adapter and one that has nothing else carry connections between
// them, whichever has the client. Each must report the flow under its own device, and connections must go on after
// they leave their queue pairs.
func TestMixedCarries(t *testing.T) {
	ctx := patience(t, 12*time.Minute)
	m := newMixed(ctx, t, "on")
	size := fmt.Sprint(mixedSize)
	for _, to := range []string{at(m.guest.Addr4, transferPort), at(m.guest.Addr6, transferPort)} {
		m.carried(ctx, t, func() {
			_, err := m.host.RunApp(ctx, "transfer", "-to", to, "-up", size, "-down", size)
			require.NoError(t, err)
		})
	}
	for _, to := range []string{at(m.host.Addr4, transferPort), at(m.host.Addr6, transferPort)} {
		m.carried(ctx, t, func() {
			p := m.start(t, appInGuest("transfer", "-to", to, "-up", size, "-down", size)...)
			require.Zero(t, result(ctx, t, p).Failed)
		})
	}
	m.datagrams(ctx, t)
	m.lossy(ctx, t)
	m.demoted(ctx, t)
	m.leavesNothing(ctx, t)
}

// carriesInGuest tells whether the guest's adapter carries a connection to a port.
func (m *machines) carriesInGuest(t *testing.T, port uint16) bool {
	t.Helper()
	var list admin.ConnList
	askIn(patience(t, time.Minute), t, m.guest, &list, "conns")
	return slices.ContainsFunc(list.Conns, func(c report.ConnInfo) bool {
		return c.Proto == "tcp" && c.Remote.Port() == port && c.Carrier == report.CarrierHW
	})
}

// leavesNothing ends the guest's gateway and checks that nothing is left on its adapter.
func (m *machines) leavesNothing(ctx context.Context, t *testing.T) {
	t.Helper()
	m.inGuestRun(t, "sh", "-c", endGateways)
	nothingLeft(ctx, t, m.guest)
}

// TestMixedOff checks that connections are native if either host does not want it.
func TestMixedOff(t *testing.T) {
	if !thorough() {
		t.Skip("the sample has the other end of the switch: make interop")
	}
	ctx := patience(t, 8*time.Minute)
	m := newMixed(ctx, t, "off")
	size := fmt.Sprint(mixedSize)
	_, err := m.host.RunApp(ctx, "transfer", "-to", at(m.guest.Addr4, transferPort), "-up", size, "-down", size)
	require.NoError(t, err)
	p := m.start(t, appInGuest("transfer", "-to", at(m.host.Addr4, transferPort), "-up", size, "-down", size)...)
	require.Zero(t, result(ctx, t, p).Failed)
	for _, s := range m.both(t) {
		require.Zero(t, s.FlowsTotal[report.CarrierSoft]+s.FlowsTotal[report.CarrierHW], "%+v", s)
	}
	m.leavesNothing(ctx, t)
}

// carried repeats a transfer until both gateways have carried one on their own devices: an emulated machine may be
// too slow for a proof.
func (m *machines) carried(ctx context.Context, t *testing.T, transfer func()) {
	t.Helper()
	flows := func() (soft, hw uint64) {
		host, inGuest := m.status(ctx, t)
		require.Zero(t, host.FlowsTotal[report.CarrierHW])
		require.Zero(t, inGuest.FlowsTotal[report.CarrierSoft])
		return host.FlowsTotal[report.CarrierSoft], inGuest.FlowsTotal[report.CarrierHW]
	}
	for range 60 {
		soft, hw := flows()
		host, _ := m.status(ctx, t)
		transfer()
		if s, h := flows(); s > soft && h > hw {
			after, _ := m.status(ctx, t)
			require.GreaterOrEqual(t, after.BytesTotal[report.CarrierSoft].Tx-host.BytesTotal[report.CarrierSoft].Tx, uint64(mixedSize))
			return
		}
		time.Sleep(2 * time.Second)
	}
	t.Fatal("no transfer was carried")
}

// lossy carries while one packet in a hundred is lost, either way: each end makes the other retransmit.
func (m *machines) lossy(ctx context.Context, t *testing.T) {
	t.Helper()
	(&lab{host: m.host}).lose(t, 100)
	size := fmt.Sprint(mixedSize / 4)
	for range 3 {
		_, err := m.host.RunApp(ctx, "transfer", "-to", at(m.guest.Addr4, transferPort), "-up", size, "-down", size)
		require.NoError(t, err)
		p := m.start(t, appInGuest("transfer", "-to", at(m.host.Addr4, transferPort), "-up", size, "-down", size)...)
		require.Zero(t, result(ctx, t, p).Failed)
	}
	require.NoError(t, m.host.FlushNFT())
	list, err := m.admin.Conns(ctx, report.ConnQuery{Closed: true})
	require.NoError(t, err)
	carried := 0
	for _, c := range list.Conns[:min(6, len(list.Conns))] { // newest first
		t.Logf("with losses: %s of %v, %s %s", c.Carrier, c.Remote, c.Demoted, c.Reason)
		if c.Carrier == report.CarrierSoft {
			carried++
		}
	}
	require.NotZero(t, carried)
}

// datagrams exchanges datagrams between devices of both kinds, from either end.
func (m *machines) datagrams(ctx context.Context, t *testing.T) {
	t.Helper()
	_, err := m.host.StartApp("serve-udp", fmt.Sprintf("echo=0.0.0.0:%d", datagramPort))
	require.NoError(t, err)
	server := m.start(t, appInGuest("serve-udp", fmt.Sprintf("echo=0.0.0.0:%d", datagramPort))...)
	require.NoError(t, server.WaitOutput(ctx, `"listening"`))
	sent := func() (soft, hw uint64) {
		var inGuest report.Stats
		askIn(ctx, t, m.guest, &inGuest, "stats")
		host, err := m.admin.Stats(ctx)
		require.NoError(t, err)
		return host.Datagrams.Sent[report.CarrierSoft], inGuest.Datagrams.Sent[report.CarrierHW]
	}
	ping := func(to string, count int) []string {
		return []string{
			"ping-udp", "-to", to, "-count", fmt.Sprint(count), "-size", "64,900,1400", "-gap", "5ms", "-limit", "3s", "-patient",
		}
	}
	const count = 200
	ways := map[string]func(count int) apps.Event{
		"from the host": func(count int) apps.Event {
			r, err := m.host.RunApp(ctx, ping(at(m.guest.Addr4, datagramPort), count)...)
			require.NoError(t, err)
			return r
		},
		"from the guest": func(count int) apps.Event {
			return result(ctx, t, m.start(t, appInGuest(ping(at(m.host.Addr4, datagramPort), count)...)...))
		},
	}
	for name, way := range ways {
		require.Eventually(t, func() bool {
			softBefore, hwBefore := sent()
			way(3)
			soft, hw := sent()
			return soft >= softBefore+3 && hw >= hwBefore+3
		}, 2*time.Minute, time.Second, "a path is found, %s", name)
		softBefore, hwBefore := sent()
		answers := way(count).OK
		soft, hw := sent()
		t.Logf("%s: %d answers to %d datagrams; by soft %d, by the adapter %d", name, answers, count, soft-softBefore, hw-hwBefore)
		require.GreaterOrEqual(t, answers, count*9/10, "datagrams may be lost, a few are")
		require.GreaterOrEqual(t, soft-softBefore, uint64(count*9/10))
		require.GreaterOrEqual(t, hw-hwBefore, uint64(count*9/10))
	}
}

// demoted demotes a connection at each end. It must go on.
func (m *machines) demoted(ctx context.Context, t *testing.T) {
	t.Helper()
	talk := m.start(t, appInGuest("ping", "-to", at(m.host.Addr4, echoPort), "-count", "100", "-gap", "100ms")...)
	for deadline := time.Now().Add(30 * time.Second); !m.carriesInGuest(t, echoPort); time.Sleep(200 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "it is carried")
	}
	m.inGuestRun(t, guestProgram, "demote", "--device", guest.Device, "--socket", "/run/admin.sock")
	require.NoError(t, talk.Wait(ctx), talk.Output())
	host, _ := m.status(ctx, t)
	require.NotZero(t, host.BytesTotal[report.CarrierRelay].Rx)
}
