package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/negotiate"
)

// memlock: a gateway that may lock next to nothing and cannot lift the limit leaves
// connections native, and names the limit.
func (p *adapterPair) memlock(ctx context.Context, t *testing.T) {
	p.gateway(ctx, t, 1, adapterSettings{})
	gateway := p.gateway(ctx, t, 0, adapterSettings{}, "sh", "-c", `ulimit -l 64; exec capsh --drop=cap_sys_resource --shell=/bin/sh -- -c 'exec "$@"' sh "$@"`, "sh")
	require.Equal(t, admin.DeviceActive, p.device(ctx, t, 0).State)
	require.Equal(t, negotiate.ReasonNoMemory.String(), p.native(ctx, t))
	device := p.device(ctx, t, 0)
	require.Equal(t, admin.DeviceFailed, device.State)
	require.Contains(t, device.Error, "RLIMIT_MEMLOCK")
	require.Contains(t, device.Error, "64 KiB")
	require.NoError(t, gateway.WaitOutput(ctx, "RLIMIT_MEMLOCK"))
}

// providerMissing and libraryMissing: rdma-core is not whole. The gateway says so, and
// all is native.
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
	require.Equal(t, admin.DeviceAbsent, device.State)
	require.Contains(t, device.Error, says)
	require.NotEmpty(t, p.native(ctx, t))
	p.sh(ctx, t, 0, "mv /run/away "+file)
	p.sh(ctx, t, 0, "kill -TERM $(pidof smcgw); while pidof smcgw; do sleep .2; done")
	p.gateway(ctx, t, 0, adapterSettings{})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// holdMany opens connections that stay, and asks each for an answer.
func (p *adapterPair) holdMany(ctx context.Context, t *testing.T, n int) (release func()) {
	t.Helper()
	p.sh(ctx, t, 0, "rm -f /run/ask /run/leave")
	hold := startIn(t, p.guest[0], "sh", "-c", `(until [ -e /run/ask ]; do sleep .2; done; echo ping; until [ -e /run/leave ]; do sleep .2; done) | exec "$@"`,
		"sh", "env", appInGuest()[1], guestApps, "hold", "-to", at(p.guest[1].Addr4, echoPort), "-count", fmt.Sprint(n), "-size", "3000", "-patience", "1m")
	require.NoError(t, hold.WaitOutput(ctx, `"mode":"connect"`))
	p.sh(ctx, t, 0, "touch /run/ask")
	require.NoError(t, hold.WaitOutput(ctx, `"mode":"ping"`))
	for line := range strings.Lines(hold.Output()) {
		var e apps.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		if e.Event == "done" {
			require.Equal(t, n, e.OK, "%+v", e)
		}
	}
	return func() {
		p.sh(ctx, t, 0, "touch /run/leave")
		require.NoError(t, hold.Wait(ctx))
		require.Eventually(t, func() bool { return len(p.conns(ctx, t, 0, echoPort)) == 0 }, time.Minute, 500*time.Millisecond)
	}
}

// carriedBy counts the connections of the first guest with the echo server by carrier,
// and what is native by reason.
func (p *adapterPair) carriedBy(ctx context.Context, t *testing.T) (by map[config.Carrier]int, native map[string]int) {
	t.Helper()
	by, native = map[config.Carrier]int{}, map[string]int{}
	for _, c := range p.conns(ctx, t, 0, echoPort, "--all") {
		if c.End == admin.EndNative {
			native[c.Reason]++
		} else {
			by[c.Carrier]++
		}
	}
	t.Logf("carried: %v, native: %v", by, native)
	return by, native
}

// manyConnections: no completion queue is asked to hold more than it can. rxe's hold
// what about sixty connections may complete.
func (p *adapterPair) manyConnections(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	release := p.holdMany(ctx, t, 150)
	by, _ := p.carriedBy(ctx, t)
	require.Greater(t, by[config.CarrierHW], 100)
	for i := range p.guest {
		device := p.device(ctx, t, i)
		t.Logf("guest %d: %v", i, device.Use)
		require.Equal(t, admin.DeviceActive, device.State)
		require.GreaterOrEqual(t, device.Use["cqs"], uint64(2))
	}
	release()
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// flowLimit: connections beyond limits.hw_flows are native, with that reason.
func (p *adapterPair) flowLimit(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{limits: ", hw_flows: 8"})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	release := p.holdMany(ctx, t, 12)
	by, native := p.carriedBy(ctx, t)
	require.LessOrEqual(t, by[config.CarrierHW], 8)
	require.GreaterOrEqual(t, native[negotiate.ReasonFlowLimit.String()], 4)
	release()
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
}

// nextCarrier: they take the next carrier, where there is one. The adapters have soft's
// port, so it has another.
func (p *adapterPair) nextCarrier(ctx context.Context, t *testing.T) {
	p.up(ctx, t, adapterSettings{limits: ", hw_flows: 8", carriers: "hw, soft"})
	p.transfer(ctx, t, at(p.guest[1].Addr4, transferPort))
	release := p.holdMany(ctx, t, 12)
	by, _ := p.carriedBy(ctx, t)
	require.LessOrEqual(t, by[config.CarrierHW], 8)
	require.NotZero(t, by[config.CarrierSoft])
	release()
}
