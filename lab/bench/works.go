package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench/load"
	"github.com/smcgw/smcgw/lab/bench/programs"
)

// run is a work done one way for about that long.
type run func(ctx context.Context, w way, d time.Duration) ([]float64, error)

// work makes a work of the ways it is done.
func work(name string, times int, ways []way, do run, metrics ...Metric) Work {
	w := Work{Name: name, Times: times, Metrics: metrics}
	for _, by := range ways {
		w.Cells = append(w.Cells, Cell{Variant: by.variant, Begin: by.begin, way: by, Run: func(ctx context.Context, d time.Duration) ([]float64, error) {
			return do(ctx, by, d)
		}})
	}
	return w
}

// native makes the ways with the library connect in vain: what they do must promote nothing.
func native(w Work) Work {
	for i := range w.Cells {
		if by := w.Cells[i].way; by.server != nil && by.server.promotion != nil {
			w.Cells[i].Begin = by.server.promotion.unpromoted(by.server)
		}
	}
	return w
}

// bulk is streams of iperf3: Gbit/s, and the processor time of the whole machine,
// of the gateways and of the programs for 10^9 bytes.
func bulk(streams int) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		stream := w.stream
		if stream == nil {
			stream = func(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) {
				return w.iperf(ctx, whole(d), streams)
			}
		}
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		bytes, seconds, err := stream(ctx, d)
		if err != nil {
			return nil, err
		}
		e, err := m.spent()
		if err != nil {
			return nil, err
		}
		gb := bytes / 1e9
		return []float64{bytes * 8 / 1e9 / seconds, e.machine / gb, e.gateways / gb, e.programs / gb}, nil
	}
}

// iperf runs iperf3 for whole seconds and returns what arrived, and how long it took.
func (w way) iperf(ctx context.Context, time string, streams int) (bytes, seconds float64, err error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", time, "-P", strconv.Itoa(streams))
	out, runErr := cmd.Output() // what went wrong is in the JSON
	bytes, seconds, congestion, err := parseIPerf(string(out))
	if err != nil {
		return 0, 0, errors.Join(err, runErr)
	}
	if congestion != "" {
		w.used.add(w.variant, congestion)
	}
	return bytes, seconds, nil
}

// Apps lists the programs of the comparisons, for [apps.Init].
func Apps() []apps.App {
	return append(programs.Apps(), load.App)
}

// bareStream is a stream of RDMA WRITEs from the client's host to the server's,
// with one loop a side.
func (c cable) bareStream(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) {
	j := load.Job{Kind: "soft", Op: "stream", Size: 256 << 10, Depth: 16, Server: c.addr, Local: c.local, MTU: 1024, Seconds: d.Seconds()}
	if c.mtu >= 4096+80 {
		j.MTU = 4096
	}
	text, err := json.Marshal(&j)
	if err != nil {
		return 0, 0, err
	}
	cmd := c.client.AppCommand(ctx, load.Program, "run", string(text))
	out, runErr := cmd.Output()
	var r load.Result
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, 0, errors.Join(fmt.Errorf("soft stream: %w: %w", errOutput, err), runErr)
	}
	if r.Error != "" || r.Bytes == 0 || r.Seconds == 0 {
		return 0, 0, fmt.Errorf("soft stream: %d bytes in %v s %s", r.Bytes, r.Seconds, r.Error)
	}
	return float64(r.Bytes), r.Seconds, nil
}

// whole is a duration for programs that know whole seconds only, and for which
// none is no limit.
func whole(d time.Duration) string { return strconv.Itoa(max(1, int(math.Round(d.Seconds())))) }

// sockperfLead is how long sockperf takes until it counts: it sleeps for two
// seconds, whatever it is told, and never counts the first 400 ms.
const sockperfLead = 2400 * time.Millisecond

// pingPong is sockperf, one message and its answer at a time: the median and
// the 99th percentile of round trips, and the processor time of the gateways for
// one.
func pingPong(size int) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		ip, port := w.address(sockperfPort)
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		out, err := w.client.runPinned(ctx, "sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", ip, "-p", port,
			"-m", strconv.Itoa(size), "-t", whole(d))
		if err != nil {
			return nil, err
		}
		p, err := parseSockperf(out)
		if err != nil {
			return nil, err
		}
		e, err := m.spent()
		return []float64{p.p50, p.p99, e.gateways / p.trips * 1e6}, err
	}
}

// redis is redis-benchmark: thousands of requests a second, and the processor time of
// the programs for one. It does a number of requests and not a time: the rate of the
// last run of the same way says how many.
func redis(start int, args ...string) run {
	var mu sync.Mutex
	rates := map[string]float64{}
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		mu.Lock()
		rate, known := rates[w.variant]
		mu.Unlock()
		count := start
		if known {
			count = max(start/4, int(rate*d.Seconds()))
		}
		ip, port := w.address(redisPort)
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		out, err := w.client.runPinned(ctx, append([]string{"redis-benchmark", "-h", ip, "-p", port, "--csv", "-t", "get", "-n", strconv.Itoa(count)}, args...)...)
		if err != nil {
			return nil, err
		}
		rate, err = parseRedis(out)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		rates[w.variant] = rate
		mu.Unlock()
		e, err := m.spent()
		return []float64{rate / 1000, e.programs / float64(count) * 1e6}, err
	}
}

// connects is connect(2) alone: the median.
func connects(count int, gap time.Duration) run {
	return func(ctx context.Context, w way, _ time.Duration) ([]float64, error) {
		r, err := w.own(ctx, programs.Connect, echoPort, "-count", strconv.Itoa(count), "-gap", gap.String())
		return []float64{r.Median}, err
	}
}

// connectionRate is connections with one request each, some at a time: how many
// a second, how long one takes, and the processor time of the whole machine and
// of the gateways for one.
func connectionRate(parallel int) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		r, err := w.own(ctx, programs.Rate, echoPort, "-seconds", seconds(d), "-parallel", strconv.Itoa(parallel))
		if err != nil {
			return nil, err
		}
		e, err := m.spent()
		n := float64(r.Operations)
		return []float64{n / r.Seconds, r.Median, r.P99, e.machine / n * 1e6, e.gateways / n * 1e6}, err
	}
}

// writes is a stream in pieces of one size.
func writes(size int) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		r, err := w.own(ctx, programs.Write, sinkPort, "-seconds", seconds(d), "-size", strconv.Itoa(size))
		if err != nil {
			return nil, err
		}
		return []float64{float64(r.Bytes) * 8 / 1e9 / r.Seconds}, nil
	}
}

// web is wrk and nginx: a path over so many connections, which are kept, or made again
// for every request.
func web(path string, connections int, closing bool) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		args := []string{"wrk", "-t", "1", "-c", strconv.Itoa(connections), "-d", whole(d) + "s"}
		if closing {
			args = append(args, "-H", "Connection: close")
		}
		out, err := w.client.runPinned(ctx, append(args, "http://"+w.to(webPort).String()+path)...)
		if err != nil {
			return nil, err
		}
		rate, err := parseWrk(out)
		return []float64{rate / 1000}, err
	}
}
