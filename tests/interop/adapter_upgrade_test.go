package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
)

// withFlag returns a command that runs another one with a flag appended.
func withFlag(flag string) []string {
	return []string{"sh", "-c", `exec nice -n -20 "$@" ` + flag, "sh"}
}

// takeover checks that two gateways of a host can have the adapter open: connections of the old one stay on it, and
// new ones are the new one's.
func (p *adapterPair) takeover(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	tk := p.talks(ctx, t)
	p.gateway(ctx, t, 0, adapterSettings{}, withFlag("--takeover")...)
	require.Zero(t, p.status(ctx, t, 0).FlowsTotal[report.CarrierHW], "the new one")
	var old admin.ConnList
	out := p.sh(ctx, t, 0, guestProgram+" conns --json --socket /run/admin.sock.old")
	require.NoError(t, json.Unmarshal([]byte(out), &old), out)
	require.NotEmpty(t, old.Conns, "one of them is slow")
	for _, c := range old.Conns {
		require.Contains(t, tk.id, c.ID)
		require.Equal(t, report.CarrierHW, c.Carrier, "%+v", c)
		require.Empty(t, c.Demoted)
	}
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	for _, prog := range tk.progs {
		require.NoError(t, prog.Wait(ctx))
	}
	p.sh(ctx, t, 0, "while [ -e /run/admin.sock.old ]; do sleep .2; done")
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// datagramPort is the port of the datagram server.
const datagramPort = 7010

// datagramRule makes datagrams to datagramPort be carried.
var datagramRule = fmt.Sprintf(
	"  - { name: datagrams, match: { proto: udp, ports: [%d], peers: [10.77.0.0/24] }, action: accelerate }\n", datagramPort)

// datagrams checks that adapters carry the datagrams of UDP programs, in pieces if they are large.
func (p *adapterPair) datagrams(ctx context.Context, t *testing.T) {
	server := startIn(t, p.guest[1], appInGuest("serve-udp", fmt.Sprintf("echo=0.0.0.0:%d", datagramPort))...)
	require.NoError(t, server.WaitOutput(ctx, `"listening"`))
	p.up(ctx, t, adapterSettings{rule: datagramRule})
	// Datagrams may be lost, natively as well, but only few.
	ping := func(count int) (answers int) {
		out := p.run(ctx, t, "ping-udp", "-to", at(p.guest[1].Addr4, datagramPort), "-count", fmt.Sprint(count), "-size", "64,900,1400",
			"-gap", "5ms", "-limit", "3s", "-patient")
		var e apps.Event
		require.NoError(t, json.Unmarshal([]byte(lastLine(out)), &e), out)
		t.Logf("%d answers to %d datagrams", e.OK, count)
		return e.OK
	}
	sent := func() uint64 {
		var st report.Stats
		p.ask(ctx, t, 0, &st, "stats")
		return st.Datagrams.Sent[report.CarrierHW]
	}
	require.Eventually(t, func() bool { ping(1); return sent() > 0 }, 2*time.Minute, time.Second, "a path is found")
	before := sent()
	require.GreaterOrEqual(t, ping(300), 270)
	require.GreaterOrEqual(t, sent()-before, uint64(300))
	require.Equal(t, report.DeviceActive, p.device(ctx, t, 0).State)

	// Without the adapter they must be native, and later on it again.
	var done admin.Result
	p.ask(ctx, t, 1, &done, "demote", "--device", "rxe0")
	p.sh(ctx, t, 1, "rdma link delete rxe0")
	require.Eventually(t, func() bool { return ping(20) == 20 }, 2*time.Minute, time.Second, "they are native")
	p.sh(ctx, t, 1, "rdma link add rxe0 type rxe netdev eth0")
	p.becomes(ctx, t, 1, report.DeviceActive)
	before = sent()
	require.Eventually(t, func() bool { return ping(20) > 0 && sent() > before+20 }, 3*time.Minute, time.Second, "they are on it again")
	for i := range p.guest {
		var st report.Stats
		p.ask(ctx, t, i, &st, "stats")
		t.Logf("guest %d: %+v", i, st.Datagrams)
	}
}

// noGuardian checks that a gateway without a guardian can use adapters, too.
func (p *adapterPair) noGuardian(ctx context.Context, t *testing.T) {
	for i := range p.guest {
		p.gateway(ctx, t, i, adapterSettings{}, withFlag("--no-guardian")...)
	}
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}
