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
	programs string              // that it takes
	metrics  []comparison.Metric // whose names follow the title of a work
	do       run
	lead     time.Duration // that the programs take until they do the work itself
	noWarmUp bool
	native   bool // with the library, too: nothing is promoted
}

// run is a work done one way for about that long.
type run func(ctx context.Context, w way, d time.Duration) ([]float64, error)

// What the names of metrics end in.
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

// costs are processor times in a unit: of the whole machine, of the gateways, of the programs.
func costs(unit string) []comparison.Metric {
	return []comparison.Metric{less(cpu, unit), less(gatewaysCPU, unit), less(programsCPU, unit)}
}

// costing does a work and adds what it cost to its first number: what it returns beside that is
// how many units of work there were.
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

// bulk is one stream of iperf3, or what a way has instead: Gbit/s, and processor time for 10^9 bytes.
var bulk = load{programs: "iperf3", metrics: append([]comparison.Metric{more("", "Gbit/s")}, costs("s/GB")...), do: costing(
	func(ctx context.Context, w way, d time.Duration) (rate, gb float64, err error) {
		stream := w.stream
		if stream == nil {
			stream = w.iperf
		}
		bytes, seconds, err := stream(ctx, d)
		return bytes * 8 / 1e9 / seconds, bytes / 1e9, err
	})}

// iperf runs iperf3 and returns what arrived, and how long it took.
func (w way) iperf(ctx context.Context, d time.Duration) (bytes, seconds float64, err error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", whole(d))
	out, runErr := cmd.Output() // what went wrong is in the JSON
	r, err := testnet.ParseIPerf3Rate(string(out))
	if err != nil {
		return 0, 0, errors.Join(err, runErr)
	}
	if r.Congestion != "" {
		w.used.add(w.variant, r.Congestion)
	}
	return float64(r.ReceivedBytes), r.Seconds, nil
}

// whole is a duration for programs that know whole seconds only, and for which
// none is no limit.
func whole(d time.Duration) string { return strconv.Itoa(max(1, int(math.Round(d.Seconds())))) }

// sockperfMost is how many messages a second sockperf sends at most: it ends without a result
// where there are more than it has set memory aside for.
const sockperfMost = "1000000"

// pingPong is sockperf, one message of 64 bytes and its answer at a time: the median and the 99th
// percentile of round trips, and the processor time of the gateways for one. Sockperf sleeps for two
// seconds before it counts, whatever it is told, and never counts the first 400 ms.
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

// requests are thousands a second, and processor time for one.
func requests() []comparison.Metric {
	return append([]comparison.Metric{more("", "kreq/s")}, costs("µs")...)
}

// redis is redis-benchmark. It does a number of requests and not a time: the rate of the last run
// of the same way says how many.
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

// web is wrk and nginx: a path over so many connections, which are kept, or made again for every
// request.
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

// connects is connect(2) alone: the median.
func connects(count int, gap time.Duration) load {
	return load{metrics: []comparison.Metric{less("", "µs")}, do: func(ctx context.Context, w way, _ time.Duration) ([]float64, error) {
		var v float64
		err := w.client.runOurs(ctx, &v, connectProgram, w.to(echoPort).String(), strconv.Itoa(count), gap.String())
		return []float64{v}, err
	}}
}

// ahead is how long the stream flows before a work beside it.
const ahead = 300 * time.Millisecond

var errStreamEnded = errors.New("the stream ended before the work beside it")

// beside is a load while one stream of iperf3 goes the same way, from before it until after it: so
// many numbers of it, and the rate of the stream.
func beside(l load, numbers int) load {
	do := l.do
	l.programs, l.noWarmUp = "iperf3 "+l.programs, true // the load by itself has it
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

// endless is a stream of iperf3 until the context ends, and its rate in Gbit/s.
func (w way) endless(ctx context.Context) (float64, error) {
	ip, port := w.address(iperfPort)
	cmd := w.client.Command(ctx, "iperf3", "-J", "-c", ip, "-p", port, "-t", strconv.Itoa(int(time.Hour.Seconds())))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, runErr := cmd.Output() // what went wrong is in the JSON
	rate, err := testnet.ParseInterruptedIPerf3(string(out))
	if err != nil {
		return 0, errors.Join(err, runErr)
	}
	return rate, nil
}

// coldConnections is how many connections a run makes that are each the first.
const coldConnections = 10

// coldPeer is connections with one request each, one after the other, each the first with the peer
// where gateways carry it: how many a second, and how long one takes.
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

// coldBy is the carrier by which the peers of a way meet; none: they need not.
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

// coldTrial has each connection to coldPort be carried as the first with its peer, until end is
// called.
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

// Connections that idle: what the targets speak of, or what the limit of open
// files, of which a program has one each, leaves. The soft device holds a region
// for each: fewer, so that an ordinary machine has the memory.
const (
	idleCount  = 20_000
	idleSoft   = 4_000
	idleSpare  = 500 // descriptors besides
	idleWarmUp = 200 // of the round that does not count
)

// Parts of the memory of an idle connection.
const (
	idleOwn    = ", heap and stacks of one gateway"
	idleShared = ", rings and queue pairs"
	idleKernel = ", kernel objects of the machine"
)

// idleConnections opens many connections, each of which has carried something there and back, and
// looks at the gateways for a while: the memory there is more than before by connection, in parts,
// and the processor time they take.
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
		if err := testnet.Sleep(ctx, time.Second); err != nil { // what follows connections settles
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
