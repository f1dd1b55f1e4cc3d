package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// load is what programs do, and what that measures.
type load struct {
	programs string              // programs that it needs
	metrics  []comparison.Metric // their names follow the title of a work
	do       run
	lead     time.Duration // time until the programs do the work itself
	noWarmUp bool
	native   bool // native even with the library: nothing is promoted
}

// run does a work in one way for about d.
type run func(ctx context.Context, w way, d time.Duration) ([]float64, error)

// Suffixes of the names of metrics.
const (
	median      = ", median"
	p99         = ", 99 %"
	cpu         = ", CPU"
	gatewaysCPU = ", CPU of the gateways"
	programsCPU = ", CPU of the programs"
)

func more(name, unit string) comparison.Metric {
	return comparison.Metric{Name: name, Unit: unit, Better: comparison.More}
}

func less(name, unit string) comparison.Metric {
	return comparison.Metric{Name: name, Unit: unit, Better: comparison.Less}
}

// costs returns the metrics of processor time in a unit: of the whole machine, of the gateways, and of the programs.
func costs(unit string) []comparison.Metric {
	return []comparison.Metric{less(cpu, unit), less(gatewaysCPU, unit), less(programsCPU, unit)}
}

// costing returns a run that does a work and appends what it cost to its first number. do also returns the number of
// units of work done.
func costing(do func(ctx context.Context, w way, d time.Duration) (value, units float64, err error)) run {
	return func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		value, units, err := do(ctx, w, d)
		if err != nil {
			return nil, err
		}
		e, err := m.spent()
		return []float64{value, e.machine / units, e.gateways / units, e.programs / units}, err
	}
}

// bulk is one stream of iperf3, or of what a way has instead: Gbit/s, and processor time per 10^9 bytes.
var bulk = load{programs: "iperf3", metrics: append([]comparison.Metric{more("", "Gbit/s")}, costs("s/GB")...), do: costing(
	func(ctx context.Context, w way, d time.Duration) (rate, gb float64, err error) {
		stream := w.stream
		if stream == nil {
			stream = w.iperf
		}
		bytes, seconds, err := stream(ctx, d)
		return bytes * 8 / 1e9 / seconds, bytes / 1e9, err
	})}

// iperf runs iperf3, and returns the bytes received and how long that took.
func (w way) iperf(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", whole(d))
	out, runErr := cmd.Output() // errors are in the JSON
	r, err := testnet.ParseIPerf3Rate(string(out))
	if err != nil {
		return 0, 0, errors.Join(err, runErr)
	}
	if r.Congestion != "" {
		w.used.add(w.variant, r.Congestion)
	}
	return float64(r.ReceivedBytes), r.Seconds, nil
}

// whole formats a duration for programs that only accept whole seconds, and for which 0 means no limit.
func whole(d time.Duration) string { return strconv.Itoa(max(1, int(math.Round(d.Seconds())))) }

// sockperfMost is the message rate that sockperf is limited to. It ends without a result if there are more messages
// than it has allocated memory for.
const sockperfMost = "1000000"

// pingPong is sockperf with one message of 64 bytes and its answer at a time: the median and the 99th percentile of
// round trips, and the processor time of the gateways for one. Sockperf always sleeps for two seconds before it counts,
// and never counts the first 400 ms.
var pingPong = load{
	programs: "sockperf", lead: 2400 * time.Millisecond, noWarmUp: true,
	metrics: []comparison.Metric{less(median, "µs"), less(p99, "µs"), less(gatewaysCPU, "µs")},
	do: func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		ip, port := w.address(sockperfPort)
		m, err := w.meter()
		if err != nil {
			return nil, err
		}
		out, err := w.client.runPinned(ctx, "sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", ip, "-p", port,
			"-m", "64", "--mps", sockperfMost, "-t", whole(d))
		if err != nil {
			return nil, err
		}
		p, err := testnet.ParseSockperf(out)
		if err != nil {
			return nil, err
		}
		e, err := m.spent()
		µs := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		return []float64{µs(p.Median), µs(p.P99), e.gateways / float64(p.Received) * 1e6}, err
	},
}

// requests returns the metrics of requests: thousands per second, and processor time for one.
func requests() []comparison.Metric {
	return append([]comparison.Metric{more("", "kreq/s")}, costs("µs")...)
}

// redis is redis-benchmark, which does a number of requests rather than running for a time. The rate of the last run of
// the same way determines the number.
func redis(start int, args ...string) load {
	var mu sync.Mutex
	rates := map[string]float64{}
	return load{programs: "redis-benchmark", metrics: requests(), do: costing(
		func(ctx context.Context, w way, d time.Duration) (krate, millions float64, err error) {
			mu.Lock()
			rate, known := rates[w.name()]
			mu.Unlock()
			count := start
			if known {
				count = max(start/4, int(rate*d.Seconds()))
			}
			ip, port := w.address(redisPort)
			out, err := w.client.runPinned(ctx, append([]string{"redis-benchmark", "-h", ip, "-p", port, "--csv", "-t", "get", "-n", strconv.Itoa(count)}, args...)...)
			if err != nil {
				return 0, 0, err
			}
			got, err := testnet.ParseRedis(out)
			if err != nil {
				return 0, 0, err
			}
			mu.Lock()
			rate = got["GET"]
			rates[w.name()] = rate
			mu.Unlock()
			return rate / 1e3, float64(count) / 1e6, nil
		})}
}

// web is wrk and nginx: a path over a number of connections, which are kept, or reopened for every request.
func web(path string, connections int, closing bool) load {
	args := []string{"-t", "1", "-c", strconv.Itoa(connections)}
	if closing {
		args = append(args, "-H", "Connection: close")
	}
	return load{programs: "wrk", metrics: requests(), native: closing, do: costing(
		func(ctx context.Context, w way, d time.Duration) (krate, millions float64, err error) {
			out, err := w.client.runPinned(ctx, slices.Concat([]string{"wrk"}, args, []string{"-d", whole(d) + "s", "http://" + w.to(webPort).String() + path})...)
			if err != nil {
				return 0, 0, err
			}
			rate, count, err := testnet.ParseWrk(out)
			return rate / 1e3, count / 1e6, err
		})}
}

// connects measures the median of connect(2) alone.
func connects(count int, gap time.Duration) load {
	return load{metrics: []comparison.Metric{less("", "µs")}, do: func(ctx context.Context, w way, _ time.Duration) ([]float64, error) {
		var v float64
		err := w.client.runOurs(ctx, &v, connectProgram, w.to(echoPort).String(), strconv.Itoa(count), gap.String())
		return []float64{v}, err
	}}
}

// ahead is how long the stream runs before the work beside it begins.
const ahead = 300 * time.Millisecond

var errStreamEnded = errors.New("the stream ended before the work beside it")

// beside is a load while one stream of iperf3 uses the same way, from before the load until after it. It keeps the
// first numbers metrics of the load, and adds the rate of the stream.
func beside(l load, numbers int) load {
	do := l.do
	l.programs, l.noWarmUp = "iperf3 "+l.programs, true // the load alone is warmed up already
	l.metrics = append(slices.Clone(l.metrics[:numbers]), more(", the stream", "Gbit/s"))
	l.do = func(ctx context.Context, w way, d time.Duration) ([]float64, error) {
		streaming, enough := context.WithCancel(ctx)
		defer enough()
		var rate float64
		var errStream error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			rate, errStream = w.endless(streaming)
		}()
		err := testnet.Sleep(ctx, ahead)
		var values []float64
		if err == nil {
			values, err = do(ctx, w, d)
		}
		select {
		case <-ended:
			return nil, errors.Join(err, errStreamEnded, errStream)
		default:
		}
		enough()
		<-ended
		if err := errors.Join(err, errStream); err != nil {
			return nil, err
		}
		return append(values[:numbers:numbers], rate), nil
	}
	return l
}

// endless runs a stream of iperf3 until the context ends, and returns its rate in Gbit/s.
func (w way) endless(ctx context.Context) (float64, error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", strconv.Itoa(int(time.Hour.Seconds())))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, runErr := cmd.Output() // errors are in the JSON
	rate, err := testnet.ParseInterruptedIPerf3(string(out))
	if err != nil {
		return 0, errors.Join(err, runErr)
	}
	return rate, nil
}

// coldConnections is how many connections a run makes, each of which is the first with its peer.
const coldConnections = 10

// coldPeer makes connections with one request each, one after the other. If gateways carry it, each is the first with
// its peer. It measures the rate, and the time that one takes.
var coldPeer = load{metrics: []comparison.Metric{more("", "1/s"), less(median, "µs")}, do: func(ctx context.Context, w way, _ time.Duration) ([]float64, error) {
	service := uint16(echoPort)
	if carrier := w.coldBy(); carrier != report.CarrierNone {
		end, err := w.coldTrial(ctx, carrier)
		if err != nil {
			return nil, err
		}
		defer end()
		service = coldPort
	}
	var took []float64
	total := 0.0
	for range coldConnections {
		e, err := w.client.RunApp(ctx, "short", "-to", w.to(service).String())
		if err != nil {
			return nil, err
		}
		if e.Failed > 0 {
			return nil, fmt.Errorf("connection to a cold peer: %s", e.Error)
		}
		took = append(took, float64(e.MedianMicros))
		total += float64(e.MedianMicros) / 1e6
	}
	slices.Sort(took)
	return []float64{coldConnections / total, took[coldConnections/2]}, nil
}}

// coldBy returns the carrier by which the peers of a way meet, or CarrierNone if they need not meet.
func (w way) coldBy() report.Carrier {
	switch w.kind() {
	case Shm:
		return report.CarrierShm
	case Soft1500:
		return report.CarrierSoft
	default:
		return report.CarrierNone
	}
}

// coldTrial makes each connection to coldPort be carried as the first with its peer, until end is called.
func (w way) coldTrial(ctx context.Context, carrier report.Carrier) (end func(), err error) {
	at := w.to(coldPort)
	client, err := w.client.gateway.admin.Try(ctx, config.Trial{Peer: at.Addr(), Port: at.Port(), Action: report.ActionAccelerate, Carrier: carrier, Cold: true})
	if err != nil {
		return nil, err
	}
	server, err := w.server.gateway.admin.Try(ctx, config.Trial{Peer: w.from, Port: at.Port(), Action: report.ActionAccelerate})
	if err != nil {
		client.Close()
		return nil, err
	}
	return func() { client.Close(); server.Close() }, nil
}

// Idle connections: as many as the targets state, or as the limit of open files permits, since a program has one file
// for each. The soft device needs a region for each connection, so there are fewer of those, to fit the memory of an
// ordinary machine.
const (
	idleCount  = 20_000
	idleSoft   = 4_000
	idleSpare  = 500 // descriptors for other purposes
	idleWarmUp = 200 // in the round that does not count
)

// Parts of the memory of an idle connection.
const (
	idleOwn    = ", heap and stacks of one gateway"
	idleShared = ", rings and queue pairs"
	idleKernel = ", kernel objects of the machine"
)

// idleConnections opens many connections, transfers something in both directions on each, and observes the gateways for
// a while. It measures the additional memory per connection, in parts, and the processor time of the gateways.
var idleConnections = load{
	metrics: []comparison.Metric{
		less(", memory of both gateways", "KiB each"), less(idleOwn, "KiB each"), less(idleShared, "KiB each"),
		less(idleKernel, "KiB each"), less(", CPU of both gateways", "%"),
	},
	do: func(ctx context.Context, w way, d time.Duration) (_ []float64, err error) {
		count := min(idleCount, openFiles()-idleSpare)
		if w.kind() == Soft1500 {
			count = min(count, idleSoft)
		}
		if d <= comparison.WarmUp {
			count = min(count, idleWarmUp)
		} else {
			w.used.say(fmt.Sprintf("idle connections of %s: %d (open files of a process: %d)", w.variant, count, openFiles()))
		}
		before, err := w.memory()
		if err != nil {
			return nil, err
		}
		p, err := w.client.StartApp("hold", "-quiet", "-to", w.to(echoPort).String(), "-count", strconv.Itoa(count))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.CloseInput(), p.Wait()) }()
		for _, command := range []string{"connect", "ping"} {
			e, err := p.Ask(ctx, command)
			if err != nil {
				return nil, err
			}
			if e.Failed > 0 {
				return nil, fmt.Errorf("idle connections: %d failed to %s", e.Failed, e.Mode)
			}
		}
		if err := testnet.Sleep(ctx, time.Second); err != nil { // let what follows from new connections settle
			return nil, err
		}
		after, err := w.memory()
		if err != nil {
			return nil, err
		}
		start, err := w.gatewayCPU()
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := testnet.Sleep(ctx, 2*d); err != nil {
			return nil, err
		}
		end, err := w.gatewayCPU()
		if err != nil {
			return nil, err
		}
		each := func(part func(memory) float64) float64 { return (part(after) - part(before)) / float64(count) }
		values := []float64{
			each(func(m memory) float64 { return m.all }), each(func(m memory) float64 { return m.own / 2 }),
			each(func(m memory) float64 { return m.shared }), each(func(m memory) float64 { return m.kernel }),
			(end - start) / time.Since(begin).Seconds() * 100,
		}
		if len(w.daemons()) == 0 {
			for _, i := range []int{0, 1, 2, 4} {
				values[i] = math.NaN()
			}
		}
		return values, nil
	},
}
