package demo

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// work is something that two ordinary programs do together.
type work struct {
	name   string
	unit   string
	better comparison.Better
	needs  string
	run    func(ctx context.Context, from, to *testnet.Host) (float64, error)
}

// works returns what the demonstration runs, as far as the programs are installed.
func works() []work {
	all := []work{
		{name: "HTTP download, 512 MiB", unit: "Gbit/s", run: download},
		{name: "HTTP small requests, median", unit: "µs", better: comparison.Less, run: smallRequests},
		{name: "iperf3, one stream", unit: "Gbit/s", needs: "iperf3", run: iperf},
		{name: "redis GET, 50 clients", unit: "kreq/s", needs: "redis-benchmark", run: redisWork("GET", "-c", "50", "-n", "40000")},
		{name: "redis SET -P 16, 50 clients", unit: "kreq/s", needs: "redis-benchmark", run: redisWork("SET", "-c", "50", "-n", "200000", "-P", "16")},
	}
	return slices.DeleteFunc(all, func(w work) bool { return w.needs != "" && !installed(w.needs) })
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

const downloadSize = 512 << 20

func download(ctx context.Context, from, to *testnet.Host) (float64, error) {
	e, err := from.RunApp(ctx, "fetch", "-to", to.AddrPort4(webPort).String(), "-size", fmt.Sprint(downloadSize))
	if err != nil || e.Failed > 0 {
		return 0, fmt.Errorf("download: %s %w", e.Error, orFailed(err))
	}
	return float64(downloadSize) * 8 / float64(e.MedianMicros) / 1000, nil
}

func smallRequests(ctx context.Context, from, to *testnet.Host) (float64, error) {
	e, err := from.RunApp(ctx, "fetch", "-to", to.AddrPort6(webPort).String(), "-count", "3000")
	if err != nil || e.Failed > 0 {
		return 0, fmt.Errorf("requests: %s %w", e.Error, orFailed(err))
	}
	return float64(e.MedianMicros), nil
}

func orFailed(err error) error {
	if err == nil {
		return ErrExpectation
	}
	return err
}

func iperf(ctx context.Context, from, to *testnet.Host) (float64, error) {
	r, err := from.IPerf3(ctx, to.AddrPort4(iperfPort), "-t", "2")
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	return r.BitsPerSecond / 1e9, nil
}

func redisWork(command string, args ...string) func(context.Context, *testnet.Host, *testnet.Host) (float64, error) {
	return func(ctx context.Context, from, to *testnet.Host) (float64, error) {
		r, err := from.RedisBenchmark(ctx, to.AddrPort4(redisPort), append([]string{"-t", command}, args...)...)
		if err != nil {
			return 0, fmt.Errorf("redis-benchmark: %w", err)
		}
		return r[command] / 1000, nil
	}
}

// measure does every work between the gateways' hosts, over direct TCP and carried, in turns. The off switch of h1
// makes the difference.
func (s *show) measure() error {
	for _, w := range works() {
		if err := s.compare(w, w.name, s.g2, report.CarrierShm); err != nil {
			return err
		}
	}
	return nil
}

// machines does some works between hosts that share no memory.
func (s *show) machines() error {
	for _, w := range works()[:2] {
		if err := s.compare(w, w.name+", to another machine", s.g4, report.CarrierSoft); err != nil {
			return err
		}
	}
	return nil
}

// compare does one work from h1 to a host, in turns.
func (s *show) compare(w work, name string, to *host, by report.Carrier) error {
	s.say("%s: h1 → %s, %d rounds direct and carried", w.name, to.Name, s.Rounds)
	l := line{name: name, unit: w.unit, better: w.better, what: fmt.Sprintf("carried by %s, both ways", by)}
	if err := l.rounds(s.Rounds, func(direct bool) (float64, error) { return s.round(w, to, by, direct) }); err != nil {
		return err
	}
	l.ok, l.note = s.noRelay(to)
	s.report.add(l)
	return nil
}

func (s *show) round(w work, to *host, by report.Carrier, off bool) (float64, error) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	if _, err := s.g1.admin.SetOff(ctx, off); err != nil {
		return 0, fmt.Errorf("switch h1: %w", err)
	}
	before, err := to.admin.Status(ctx)
	if err != nil {
		return 0, err
	}
	v, err := w.run(ctx, s.h1, to.Host)
	if err != nil {
		return 0, err
	}
	after, err := to.admin.Status(ctx)
	if err != nil {
		return 0, err
	}
	grown := after.FlowsTotal[by] > before.FlowsTotal[by]
	if grown == off {
		return 0, fmt.Errorf("%s: off %v, but carried by %s %v: %w", w.name, off, by, grown, ErrExpectation)
	}
	return v, nil
}

// noRelay reports whether everything that was carried used RDMA.
func (s *show) noRelay(to *host) (bool, string) {
	for _, g := range []*host{s.g1, to} {
		st, err := g.admin.Status(s.ctx)
		if err != nil {
			return false, err.Error()
		}
		if n := st.FlowsTotal[report.CarrierRelay]; n > 0 {
			return false, fmt.Sprintf("%d flows of %s went by relay", n, g.Name)
		}
	}
	return true, ""
}
