package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestLoadRedis runs an unmodified redis between two hosts, carried by RDMA.
func TestLoadRedis(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "redis-server", "redis-cli", "redis-benchmark")
	w := newWorld(t, testnet.Config{})
	_, err := w.h2.Redis(redisPort)
	require.NoError(t, err)
	g1, g2 := w.upBoth(settings{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
		server, client := w.h2.AddrPort4(redisPort), w.h1.Addr4
		if strings.HasPrefix(addr(w.h2, redisPort), "[") {
			server, client = w.h2.AddrPort6(redisPort), w.h1.Addr6
		}
		list, err := w.h1.RedisCLI(ctx, server, "CLIENT", "LIST")
		require.NoError(t, err)
		require.Contains(t, list, "addr="+hostPrefix(client.String()), "redis sees the true client")
		require.Contains(t, list, "laddr="+addr(w.h2, redisPort))

		before := g2.status().FlowsTotal[w.via]
		rps, err := w.h1.RedisBenchmark(ctx, server, "-t", "set,get", "-c", "50", "-n", "20000")
		require.NoError(t, err)
		piped, err := w.h1.RedisBenchmark(ctx, server, "-t", "set,get", "-c", "50", "-n", "100000", "-P", "16")
		require.NoError(t, err)
		for _, r := range []map[string]float64{rps, piped} {
			require.Positive(t, r["SET"], "%v", r)
			require.Positive(t, r["GET"], "%v", r)
		}
		require.GreaterOrEqual(t, g2.status().FlowsTotal[w.via]-before, uint64(200), "4 runs of 50 connections")
		t.Logf("requests per second: %v, pipelined: %v", rps, piped)
	})
	s := g1.status()
	require.Positive(t, s.BytesTotal[w.via].Tx)
	require.Empty(t, s.FallbacksTotal, "nothing fell back")
}

func hostPrefix(a string) string {
	if strings.Contains(a, ":") {
		return "[" + a + "]:"
	}
	return a + ":"
}

// TestLoadTransfer transfers 2 GiB each way, checked byte by byte, while 50 other flows come and go. Only whole
// matrices have both directions at once; other runs draw one.
func TestLoadTransfer(t *testing.T) {
	w := newServed(t)
	// On two cores that also move gigabytes a handshake may take long.
	patient := settings{Handshake: "2s"}
	g1, g2 := w.upBoth(patient)
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			e, err := w.app(w.h1, time.Minute, "churn", "-count", "200", "-parallel", "50", "-size", "20000",
				"-seed", fmt.Sprint(i+1), "-to", w.h2.AddrPort6(transferPort).String())
			if err != nil || e.Failed > 0 {
				t.Errorf("churn: %v %+v", err, e)
				return
			}
		}
	})
	const much = 2 << 30
	up, down := uint64(much), uint64(much)
	if !matrix.Whole() {
		lesser := matrix.Cells(t, []*uint64{&up, &down}, 1)[0]
		*lesser = much / 16
	}
	e := w.mustApp(w.h1, "transfer", "-up", itoa(int(up)), "-down", itoa(int(down)), "-to", w.h2.AddrPort4(transferPort).String())
	close(stop)
	churn.Wait()
	require.EqualValues(t, up, e.Sent)
	require.EqualValues(t, down, e.Received)
	w.carriedBy(e, w.via)
	t.Logf("%d MiB in %v beside the churn", (up+down)>>20, time.Duration(e.Micros)*time.Microsecond)
	for _, g := range []*gw{g1, g2} {
		t.Logf("%s: fallbacks of the churn, where the processors were too slow: %v", g.h.Name, g.status().FallbacksTotal)
		require.Eventually(t, func() bool {
			s := g.status()
			return len(s.Flows) == 0 || s.Flows[w.via] == 0 && s.Memory.UsedBytes == 0
		}, 30*time.Second, 200*time.Millisecond, "%s: %+v", g.h.Name, g.status())
	}
}
