package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/testnet"
)

func TestMain(m *testing.M) {
	apps.Init(bench.Apps()...)
	os.Exit(leak.Main(m))
}

const port = 7001

const configuration = `schema: smcgw/v1
mode: enforce
admin: %[1]s/%[2]s.sock
devices: [eth0]
policy: [{ name: bench, match: { ports: [7001] }, action: accelerate }]
carriers: [shm]
shm_dir: %[1]s/shm
state_dir: %[1]s/%[2]s.state
limits: { handshake_timeout: 1s }
`

// pair is two hosts with gateways and the servers of the work on the second.
type pair struct {
	h1, h2    *testnet.Host
	admin     *admin.Client
	guardians map[*testnet.Host]int // of the gateways
}

func newPair(b *testing.B) *pair { return newPairOf(b, configuration) }

// newPairOf is newPair with another configuration.
func newPairOf(b *testing.B, config string) *pair {
	testnet.Require(b, "root", "bpf")
	n := testnet.Start(b, testnet.Config{Hosts: []string{"h1", "h2"}})
	p := &pair{h1: n.Host("h1"), h2: n.Host("h2"), guardians: map[*testnet.Host]int{}}
	p.start(b, n, config)
	return p
}

// start starts a gateway on every host of n and waits until they are up. The
// configuration has the directory of the run and the name of the host put in.
func (p *pair) start(b *testing.B, n *testnet.Network, config string) {
	dir := b.TempDir()
	binary := program(b)
	for _, h := range n.Hosts() {
		proc, admin, err := daemon.Start(b.Context(), h, daemon.Spec{
			Executable: binary, File: filepath.Join(dir, h.Name+".yaml"),
			Configuration: fmt.Sprintf(config, dir, h.Name), Socket: filepath.Join(dir, h.Name+".sock"),
		})
		require.NoError(b, err)
		b.Cleanup(admin.Close)
		p.guardians[h] = proc.Pid()
		if h.Name == "h1" {
			p.admin = admin
		}
	}
}

// alternate runs work over direct TCP and carried in turns and reports the
// medians of both and of the ratios of the rounds.
func (p *pair) alternate(b *testing.B, unit string, work func() float64) {
	var direct, carried, ratios []float64
	for b.Loop() {
		d := p.round(b, true, work)
		c := p.round(b, false, work)
		direct, carried, ratios = append(direct, d), append(carried, c), append(ratios, c/d)
	}
	b.ReportMetric(median(direct), "direct-"+unit)
	b.ReportMetric(median(carried), "carried-"+unit)
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(slices.Min(ratios), "ratio-min")
	b.ReportMetric(slices.Max(ratios), "ratio-max")
}

func (p *pair) round(b *testing.B, off bool, work func() float64) float64 {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	_, err := p.admin.SetOff(ctx, off)
	require.NoError(b, err)
	if file := os.Getenv("SMCGW_PROFILE"); file != "" && !off {
		perf := exec.Command("perf", "record", "-q", "-a", "-g", "-o", file, "sleep", "1")
		require.NoError(b, perf.Start())
		defer func() { _ = perf.Wait() }()
	}
	return work()
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// BenchmarkBulk is one stream of iperf3.
func BenchmarkBulk(b *testing.B) {
	p := newPair(b)
	_, err := p.h2.IPerf3Server(port)
	require.NoError(b, err)
	p.alternate(b, "Gbit/s", func() float64 {
		r, err := p.h1.IPerf3(b.Context(), p.h2.AddrPort4(port), "-t", "1.5")
		require.NoError(b, err)
		return r.BitsPerSecond / 1e9
	})
}

// BenchmarkPing is one request of 64 bytes and its answer, the median of 2000.
func BenchmarkPing(b *testing.B) {
	p := newPair(b)
	_, err := p.h2.StartApp("serve", fmt.Sprintf("echo=[::]:%d", port))
	require.NoError(b, err)
	p.alternate(b, "us", func() float64 {
		e, err := p.h1.RunApp(b.Context(), "ping", "-count", "2000", "-to", p.h2.AddrPort4(port).String())
		require.NoError(b, err)
		require.Zero(b, e.Failed, e.Error)
		return float64(e.MedianMicros)
	})
}
