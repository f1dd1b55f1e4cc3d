package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/negotiate"
)

// memlock checks that a gateway that may lock next to no memory and cannot raise the limit leaves connections native,
// and names the limit.
func (p *adapterPair) memlock(ctx context.Context, t *testing.T) {
	p.gateway(ctx, t, 1, adapterSettings{})
	gateway := p.gateway(ctx, t, 0, adapterSettings{}, "sh", "-c", `ulimit -l 64; exec capsh --drop=cap_sys_resource --shell=/bin/sh -- -c 'exec "$@"' sh "$@"`, "sh")
	require.Equal(t, report.DeviceActive, p.device(ctx, t, 0).State)
	require.Equal(t, negotiate.ReasonNoMemory.String(), p.native(ctx, t))
	device := p.device(ctx, t, 0)
	require.Equal(t, report.DeviceFailed, device.State)
	require.Contains(t, device.Error, "RLIMIT_MEMLOCK")
	require.Contains(t, device.Error, "64 KiB")
	require.NoError(t, gateway.WaitOutput(ctx, "RLIMIT_MEMLOCK"))
}

// providerMissing and libraryMissing check that the gateway reports an incomplete rdma-core, and everything is native.
func (p *adapterPair) providerMissing(ctx context.Context, t *testing.T) {
	p.absent(ctx, t, "/etc/libibverbs.d", "provider")
}

func (p *adapterPair) libraryMissing(ctx context.Context, t *testing.T) {
	p.absent(ctx, t, "/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "libibverbs.so.1")
}

func (p *adapterPair) absent(ctx context.Context, t *testing.T, file, says string) {
	p.sh(ctx, t, 0, "mv "+file+" /run/away")
	p.up(ctx, t, adapterSettings{})
	device := p.device(ctx, t, 0)
	t.Logf("%s %s: %s", device.Name, device.State, device.Error)
	require.Equal(t, report.DeviceAbsent, device.State)
	require.Contains(t, device.Error, says)
	require.NotEmpty(t, p.native(ctx, t))
	p.sh(ctx, t, 0, "mv /run/away "+file)
	p.sh(ctx, t, 0, endGateways)
	p.gateway(ctx, t, 0, adapterSettings{})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// holdMany opens connections that stay, asks each for an answer, and returns how many answered, and a function that
// ends them.
func (p *adapterPair) holdMany(ctx context.Context, t *testing.T, n int) (answered int, release func()) {
	t.Helper()
	p.sh(ctx, t, 0, "rm -f /run/ask /run/leave")
	hold := startIn(t, p.guest[0], append([]string{
		"sh", "-c",
		`(until [ -e /run/ask ]; do sleep .2; done; echo ping; until [ -e /run/leave ]; do sleep .2; done) | exec "$@"`, "sh",
	},
		appInGuest("hold", "-to", at(p.guest[1].Addr4, echoPort), "-count", fmt.Sprint(n), "-size", "3000", "-patience", "1m")...)...)
	require.NoError(t, hold.WaitOutput(ctx, `"mode":"connect"`))
	p.sh(ctx, t, 0, "touch /run/ask")
	require.NoError(t, hold.WaitOutput(ctx, `"mode":"ping"`))
	for line := range strings.Lines(hold.Output()) {
		var e apps.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e.Event == "done" && e.Mode == "ping" {
			answered = e.OK
		}
	}
	return answered, func() {
		p.sh(ctx, t, 0, "touch /run/leave")
		require.NoError(t, hold.Wait(ctx))
		require.Eventually(t, func() bool { return len(p.conns(ctx, t, 0, echoPort)) == 0 }, time.Minute, 500*time.Millisecond)
	}
}

// carriedBy counts the first guest's connections to the echo server by carrier, and the native ones by reason.
func (p *adapterPair) carriedBy(ctx context.Context, t *testing.T) (by map[report.Carrier]int, native map[string]int) {
	t.Helper()
	by, native = map[report.Carrier]int{}, map[string]int{}
	for _, c := range p.conns(ctx, t, 0, echoPort) {
		by[c.Carrier]++
	}
	for _, c := range p.natives(ctx, t, echoPort) {
		native[c.Reason]++
	}
	t.Logf("carried: %v, native: %v", by, native)
	return by, native
}

// manyConnections checks that no completion queue is asked to hold more than it can: rxe's hold what 63 connections
// may complete. Emulated processors may leave a gateway without time for seconds meanwhile, for which its guardian
// would end it; so it runs without one, and only the kernel answers for it.
func (p *adapterPair) manyConnections(ctx context.Context, t *testing.T) {
	for i := range p.guest {
		p.gateway(ctx, t, i, adapterSettings{}, withFlag("--no-guardian")...)
	}
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	for try := 1; ; try++ {
		answered, release := p.holdMany(ctx, t, manyFlows)
		by, _ := p.carriedBy(ctx, t)
		for i := range p.guest {
			device := p.device(ctx, t, i)
			t.Logf("guest %d: %v", i, device.Use)
			require.Equal(t, report.DeviceActive, device.State)
			require.True(t, by[report.CarrierHW] <= 63 || device.Use["cqs"] >= 2)
		}
		release()
		if by[report.CarrierHW] > 63 && answered == manyFlows {
			break
		}
		require.Less(t, try, workTries, "adapters carry too few")
	}
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

const (
	// manyFlows is more than a completion queue of rxe has room for.
	manyFlows = 80
	// fewFlows lets an adapter carry fewer connections than moreFlows.
	fewFlows  = ", hw_flows: 4"
	moreFlows = 24
)

// flowLimit checks that connections beyond limits.hw_flows are native for that reason.
func (p *adapterPair) flowLimit(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{limits: fewFlows})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	answered, release := p.holdMany(ctx, t, moreFlows)
	require.Equal(t, moreFlows, answered)
	by, native := p.carriedBy(ctx, t)
	require.LessOrEqual(t, by[report.CarrierHW], 4)
	require.NotZero(t, by[report.CarrierHW])
	require.NotZero(t, native[negotiate.ReasonFlowLimit.String()])
	release()
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// nextCarrier checks that connections beyond the limit use the next carrier if there is one. The adapters have soft's
// port, so soft uses another.
func (p *adapterPair) nextCarrier(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{limits: fewFlows, carriers: "hw, soft"})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	answered, release := p.holdMany(ctx, t, moreFlows)
	require.Equal(t, moreFlows, answered)
	by, native := p.carriedBy(ctx, t)
	require.LessOrEqual(t, by[report.CarrierHW], 4)
	require.NotZero(t, by[report.CarrierHW])
	require.NotZero(t, by[report.CarrierSoft])
	require.Zero(t, native[negotiate.ReasonFlowLimit.String()])
	release()
}
