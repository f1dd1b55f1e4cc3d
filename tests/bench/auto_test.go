package bench

import (
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

var autoConfig = strings.Replace(configuration, "action: accelerate", "action: auto", 1)

// BenchmarkAuto is what may not be slower with action auto than with the gateway
// switched off: requests of redis on 50 connections, and connections for one
// request each. What there is to learn is learned before.
func BenchmarkAuto(b *testing.B) {
	b.Run("redis-c50", func(b *testing.B) {
		p := newPairOf(b, autoConfig)
		_, err := p.h2.Redis(port)
		require.NoError(b, err)
		p.learn(b, func() { p.redis(b, 20000) })
		p.alternate(b, "req/s", func() float64 { return p.redis(b, 200000) })
	})
	b.Run("short", func(b *testing.B) {
		p := newPairOf(b, autoConfig)
		_, err := p.h2.StartApp("serve", "-quiet", fmt.Sprintf("echo=[::]:%d", port))
		require.NoError(b, err)
		to := p.h2.AddrPort4(port).String()
		require.NoError(b, p.h1.SetSysctl("net.ipv4.ip_local_port_range", "15000 65000"))
		require.NoError(b, p.h1.SetSysctl("net.ipv4.tcp_tw_reuse", "1"))
		p.learn(b, func() { p.short(b, to, 100, 16) })
		p.alternate(b, "conn/s", func() float64 {
			e := p.short(b, to, 2000, 16)
			return float64(e.OK) / float64(e.AllMicros) * 1e6
		})
	})
}

// learn does some of the work until its service is found to be better off
// natively.
func (p *pair) learn(b *testing.B, work func()) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		work()
		list, err := p.admin.Services(b.Context())
		require.NoError(b, err)
		if len(list.Services) == 1 && list.Services[0].Verdict == admin.VerdictNative {
			b.Logf("%s", list.Services[0].Why)
			return
		}
	}
	b.Fatal("nothing was learned")
}

// redis returns the rate of GETs on 50 connections.
func (p *pair) redis(b *testing.B, count int) float64 {
	out, err := p.h1.Run(b.Context(), "redis-benchmark", "-h", p.h2.Addr4.String(), "-p", strconv.Itoa(port),
		"--csv", "-t", "get", "-c", "50", "-n", strconv.Itoa(count))
	require.NoError(b, err)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(b, err)
	last := rows[len(rows)-1]
	require.Equal(b, "GET", last[0], out)
	rate, err := strconv.ParseFloat(last[1], 64)
	require.NoError(b, err)
	return rate
}
