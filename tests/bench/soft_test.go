package bench

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"

	"github.com/smcgw/smcgw/lab/bench/load"
)

// contest is several ways to do the same, in alternating rounds.
type contest struct {
	names  []string
	values map[string]series // what counts
	costs  map[string]series // CPU seconds per 10^9 bytes
}

// enter measures one round of a way.
func (c *contest) enter(name string, value, cost float64) {
	if c.values == nil {
		c.values, c.costs = map[string]series{}, map[string]series{}
	}
	if c.values[name] == nil {
		c.names = append(c.names, name)
	}
	c.values[name] = append(c.values[name], value)
	c.costs[name] = append(c.costs[name], cost)
}

// report prints the medians with their spread, and the ratios to each of the
// references.
func (c *contest) report(b *testing.B, unit string, references ...string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\t%s\t(min - max)\tCPU s/GB", b.Name(), unit)
	for _, ref := range references {
		fmt.Fprintf(w, "\t/ %s\t(min - max)", ref)
	}
	fmt.Fprintln(w)
	for _, name := range c.names {
		v := c.values[name]
		fmt.Fprintf(w, "%s\t%.2f\t(%.2f - %.2f)\t%.3f", name, v.median(), slices.Min(v), slices.Max(v), c.costs[name].median())
		for _, ref := range references {
			q := v.over(c.values[ref])
			fmt.Fprintf(w, "\t%.2f\t(%.2f - %.2f)", q.median(), slices.Min(q), slices.Max(q))
		}
		fmt.Fprintln(w)
		b.ReportMetric(v.median(), name+"-"+unit)
	}
	_ = w.Flush()
	for _, ref := range references {
		for _, name := range c.names {
			if name != ref {
				b.ReportMetric(c.values[name].over(c.values[ref]).median(), name+"/"+ref)
			}
		}
	}
}

// linkMTUs are those of the aims.
var linkMTUs = []int{1500, 9000}

// BenchmarkSoftStream is one reliable connection that writes, beside one TCP
// connection and the raw datagrams that the device cannot surpass.
func BenchmarkSoftStream(b *testing.B) {
	for _, mtu := range linkMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			l := overCable(b, mtu)
			var c contest
			jobs := []load.Job{
				{Kind: "raw", Op: "stream", Seconds: 1},
				{Kind: "soft", Op: "stream", Size: 256 << 10, Depth: 16, Seconds: 1, Profile: profileTo(fmt.Sprintf("stream-%d", mtu))},
			}
			for _, cc := range congestionControls(b) {
				jobs = append(jobs, tcpStream(cc, 1))
			}
			for b.Loop() {
				for _, j := range jobs {
					r := l.run(j)
					c.enter(j.Kind+j.CC, r.BitsPerSecond()/1e9, r.CPUPerGB())
					if j.Kind == "soft" {
						b.Logf("source %+v sink %+v", r.Source, r.Sink)
					}
				}
			}
			c.report(b, "Gbit/s", "tcpcubic", "raw")
		})
	}
}

// BenchmarkSoftSizes is the stream by the size of its messages.
func BenchmarkSoftSizes(b *testing.B) {
	for _, mtu := range linkMTUs {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			l := overCable(b, mtu)
			var c contest
			for b.Loop() {
				for size := 1 << 10; size <= 1<<20; size <<= 2 {
					r := l.run(load.Job{Kind: "soft", Op: "stream", Size: size, Depth: max(16, min(1024, 4<<20/size)), Seconds: 0.5})
					c.enter(fmt.Sprintf("%dKiB", size>>10), r.BitsPerSecond()/1e9, r.CPUPerGB())
				}
			}
			c.report(b, "Gbit/s", "256KiB")
		})
	}
}

// BenchmarkSoftPing is a message of 64 bytes and its echo.
func BenchmarkSoftPing(b *testing.B) {
	l := overCable(b, 1500)
	var c contest
	for b.Loop() {
		for _, kind := range []string{"udp", "tcp", "soft"} {
			r := l.run(load.Job{Kind: kind, Op: "ping", Size: 64, Count: 3000, Profile: profileTo("ping-" + kind)})
			c.enter(kind, r.Median, r.CPU/float64(2*64*r.Messages)*1e9)
			c.enter(kind+"-p99", r.P99, r.CPU/float64(2*64*r.Messages)*1e9)
			if kind == "soft" {
				b.Logf("source %+v sink %+v", r.Source, r.Sink)
			}
		}
	}
	c.report(b, "us", "udp", "tcp")
}

// BenchmarkSoftRate is messages of 64 bytes, posted or written one by one.
func BenchmarkSoftRate(b *testing.B) {
	l := overCable(b, 1500)
	var c contest
	for b.Loop() {
		for _, w := range []struct {
			name string
			job  load.Job
		}{
			{"tcp", load.Job{Kind: "tcp", CC: "cubic"}},
			{"soft-write", load.Job{Kind: "soft", Verb: "write", Depth: 512, Profile: profileTo("rate")}},
			{"soft-send", load.Job{Kind: "soft", Verb: "send", Depth: 512}},
		} {
			w.job.Op, w.job.Size, w.job.Seconds = "rate", 64, 1
			r := l.run(w.job)
			c.enter(w.name, float64(r.Messages)/r.Seconds/1e6, r.CPUPerGB())
		}
	}
	c.report(b, "Mmsg/s", "tcp")
}
