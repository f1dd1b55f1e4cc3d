package bench

import (
	"context"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/internal/procfs"
)

// task is one run and the works of the report for which it provides values.
type task struct {
	name    string
	run     run
	results []result
	cold    bool   // each connection is the first with its peer
	plain   string // why plain TCP has no value; empty if it has one
	stays   bool   // uses lasting connections, so [Program] can do it
}

// missing returns why a task is not done one way, or "".
func (t task) missing(v *variant) string {
	switch {
	case v.missing != "":
		return v.missing
	case v.carrier == report.CarrierNone:
		return t.plain
	case v.way == report.WayInProcess && !t.stays:
		return "connections that are short or idle stay native"
	default:
		return ""
	}
}

// run does a work for about the given time.
type run func(s *session, ctx context.Context, d time.Duration) (measured, error)

// result computes the value of a work from a run.
type result struct {
	comparison.Metric
	value func(m measured, cpu cost) float64
}

func more(name, unit string, value func(measured, cost) float64) result {
	return result{comparison.Metric{Name: name, Unit: unit, Better: comparison.More}, value}
}

func less(name, unit string, value func(measured, cost) float64) result {
	return result{comparison.Metric{Name: name, Unit: unit, Better: comparison.Less}, value}
}

// tasks lists the works, in the order of the report.
var tasks = []task{
	{name: "upload", stays: true, run: (*session).upload, results: []result{
		more("upload, 1 stream", "MB/s", perSecond),
		less("processor time, upload", "s/GB", perGB(all)),
		less("of programs, upload", "s/GB", perGB(ofPrograms)),
	}},
	{name: "download", stays: true, run: (*session).download, results: []result{
		more("download, 1 stream", "MB/s", perSecond),
		less("processor time, download", "s/GB", perGB(all)),
		less("of programs, download", "s/GB", perGB(ofPrograms)),
	}},
	{name: "ping-pong", stays: true, run: (*session).ping, results: []result{
		less("ping-pong 64 B, p50", "µs", quantile(50)),
		less("ping-pong 64 B, p99", "µs", quantile(99)),
		less("ping-pong 64 B, p99.9", "µs", quantile(99.9)),
		less("processor time, ping-pong", "µs", perOperation(all)),
		less("of programs, ping-pong", "µs", perOperation(ofPrograms)),
	}},
	{name: "connections", run: (*session).rate, results: []result{
		more("connect, request, close", "1/s", connsPerSecond),
		less("processor time, connection", "µs", perOperation(all)),
		less("of programs, connection", "µs", perOperation(ofPrograms)),
	}},
	{name: "ping-pong beside a stream", stays: true, run: besideStream((*session).ping), results: []result{
		less("ping-pong 64 B beside a stream, p50", "µs", quantile(50)),
		less("ping-pong 64 B beside a stream, p99", "µs", quantile(99)),
	}},
	{name: "connections beside a stream", run: besideStream((*session).rate), results: []result{
		more("connect, request, close beside a stream", "1/s", connsPerSecond),
	}},
	{name: "connections to a cold peer", run: (*session).cold, cold: true, results: []result{
		more("connect, request, close, cold peer", "1/s", connsPerSecond),
		less("connect, request, close, cold peer, p50", "µs", quantile(50)),
	}},
	{name: "idle connections", run: (*session).hold, plain: "no gateway has memory for it", results: []result{
		less("idle connection, rings", "B", perFlow(here, rings)),
		less("idle connection, heap", "B", perFlow(here, heap)),
		less("idle connection, resident", "B", perFlow(here, resident)),
		less("idle connection, rings, serving host", "B", perFlow(there, rings)),
		less("idle connection, heap, serving host", "B", perFlow(there, heap)),
		less("idle connection, resident, serving host", "B", perFlow(there, resident)),
	}},
}

func perSecond(m measured, _ cost) float64 { return float64(m.bytes) / 1e6 / m.elapsed.Seconds() }

func connsPerSecond(m measured, _ cost) float64 { return float64(m.count) / m.elapsed.Seconds() }

// perGB returns the CPU time of both ends per GB; NaN if one of them is unknown.
func perGB(part func(cost) float64) func(measured, cost) float64 {
	return func(m measured, cpu cost) float64 {
		if !cpu.known || m.bytes == 0 {
			return math.NaN()
		}
		return part(cpu) / (float64(m.bytes) / 1e9)
	}
}

// perOperation returns the CPU time of both ends per round trip or connection.
func perOperation(part func(cost) float64) func(measured, cost) float64 {
	return func(m measured, cpu cost) float64 {
		if !cpu.known || m.count == 0 {
			return math.NaN()
		}
		return part(cpu) / float64(m.count) * 1e6
	}
}

func all(c cost) float64        { return c.programs + c.gateways }
func ofPrograms(c cost) float64 { return c.programs }

func quantile(q float64) func(measured, cost) float64 {
	return func(m measured, _ cost) float64 {
		if m.latency == nil || m.latency.TotalCount() == 0 {
			return math.NaN()
		}
		return float64(m.latency.ValueAtQuantile(q)) / 1e3
	}
}

// meters are the meters of both ends at one time.
type meters struct {
	own, gateway uint64 // of the measuring host
	hasGateway   bool
	serving      reading
}

// cost is the CPU time of a run, in seconds.
type cost struct {
	programs, gateways float64
	known              bool
}

// meters reads all of them.
func (c *runner) meters() (m meters, err error) {
	if m.serving, err = c.s.sample(); err != nil {
		return m, err
	}
	m.own, m.hasGateway, m.gateway = ownCPU(), c.o.Gateway != nil, processCPU(c.pid)
	return m, nil
}

// until returns the cost between two readings. It is unknown if a host has a daemon that cannot be seen.
func (m meters) until(n meters) cost {
	c := cost{known: true}
	add := func(to *float64, before, after uint64) {
		d, ok := spent(before, after)
		*to, c.known = *to+float64(d)/1e9, c.known && ok
	}
	add(&c.programs, m.own, n.own)
	add(&c.programs, m.serving.OwnCPU, n.serving.OwnCPU)
	if m.hasGateway {
		add(&c.gateways, m.gateway, n.gateway)
	}
	add(&c.gateways, m.serving.GatewayCPU, n.serving.GatewayCPU)
	return c
}

// ownCPU returns the CPU time of this process, and of its child processes that have ended.
func ownCPU() uint64 {
	var sum uint64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			return unknownCPU
		}
		sum += uint64(r.Utime.Nano() + r.Stime.Nano())
	}
	return sum
}

// processCPU returns the CPU time of another process, or unknownCPU if there is none or it cannot be seen from here.
func processCPU(pid int) uint64 {
	if pid <= 0 {
		return unknownCPU
	}
	t, ok := procfs.StatOf(pid).CPU()
	if !ok {
		return unknownCPU
	}
	return uint64(t)
}

// spent returns the difference of two readings; false if one is unknown.
func spent(before, after uint64) (uint64, bool) {
	if before == unknownCPU || after == unknownCPU || after < before {
		return 0, false
	}
	return after - before, true
}
