package bench

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/bench/report"
)

// Metrics, by what the report calls them.
var (
	bulk1     = Metric{"bulk, 1 stream", "Gbit/s", report.More}
	bulk1CPU  = Metric{"bulk, 1 stream, CPU", "s/GB", report.Less}
	bulk8     = Metric{"bulk, 8 streams", "Gbit/s", report.More}
	bulk8CPU  = Metric{"bulk, 8 streams, CPU", "s/GB", report.Less}
	ping64    = Metric{"ping-pong 64 B, median", "µs", report.Less}
	ping64P99 = Metric{"ping-pong 64 B, 99 %", "µs", report.Less}
	ping4K    = Metric{"ping-pong 4 KiB, median", "µs", report.Less}
	ping4KP99 = Metric{"ping-pong 4 KiB, 99 %", "µs", report.Less}
	redisC1   = Metric{"redis -c1", "kreq/s", report.More}
	redisC50  = Metric{"redis -c50", "kreq/s", report.More}
	redisP16  = Metric{"redis -c50 -P16", "kreq/s", report.More}
	webKept   = Metric{"nginx, 16 connections kept", "kreq/s", report.More}
	webClosed = Metric{"nginx, a connection per request", "kreq/s", report.More}

	pastBulk    = Metric{"not carried: bulk", "Gbit/s", report.More}
	pastBulkCPU = Metric{"not carried: bulk, CPU", "s/GB", report.Less}
	pastPing    = Metric{"not carried: ping-pong 64 B, median", "µs", report.Less}
	pastPingP99 = Metric{"not carried: ping-pong 64 B, 99 %", "µs", report.Less}
	pastConnect = Metric{"not carried: connect()", "µs", report.Less}
	offered     = Metric{"not carried: connect() with an option", "µs", report.Less}

	rate1    = Metric{"connections, one at a time", "1/s", report.More}
	rate1P50 = Metric{"connections, one at a time, median", "µs", report.Less}
	rate1P99 = Metric{"connections, one at a time, 99 %", "µs", report.Less}
	rate8    = Metric{"connections, 8 at a time", "1/s", report.More}
	rate8P50 = Metric{"connections, 8 at a time, median", "µs", report.Less}
	rate8P99 = Metric{"connections, 8 at a time, 99 %", "µs", report.Less}

	idleFlow = Metric{"idle connections, memory of both gateways", "KiB each", report.Less}
	idleCPU  = Metric{"idle connections, CPU of both gateways", "%", report.Less}
)

// choice is a work and the program it needs.
type choice struct {
	program string
	work    Work
}

// works lists everything, or what the targets P1 to P5 and connections per
// second need.
func works(ways map[string]way, quick bool) []choice {
	by := func(variants ...string) (list []way) {
		for _, v := range variants {
			if w, ok := ways[v]; ok {
				list = append(list, w)
			}
		}
		return list
	}
	// The ways of most works, and those besides of the whole comparison.
	most := func(more ...string) []way {
		list := append([]string{report.TCP, TwoProxies, Shm, Auto}, more...)
		if !quick {
			list = append(list, OneProxy, GoSplice, Soft1500, Soft9000, Attached, Released)
		}
		return by(list...)
	}
	stream := []string{TCP9000, RC1500, RC9000}
	if quick {
		stream = append(stream, Soft1500, Soft9000)
	}
	list := []choice{
		{"iperf3", work("bulk", 1, most(stream...), bulk(1), bulk1, bulk1CPU)},
		{"sockperf", work("ping", 1, most(Latency), pingPong(64), ping64, ping64P99)},
		{"redis-benchmark", work("redis-c50", 1, most(), redis(20000, "-c", "50"), redisC50)},
		{"redis-benchmark", work("redis-c1", 1, most(Latency), redis(4000, "-c", "1"), redisC1)},
		{"redis-benchmark", work("redis-P16", 1, most(), redis(100000, "-c", "50", "-P", "16"), redisP16)},
		{"iperf3", work("past-bulk", 2, by(report.TCP, Attached, Released), bulk(1), pastBulk, pastBulkCPU)},
		{"sockperf", work("past-ping", 2, by(report.TCP, Attached, Released), pingPong(64), pastPing, pastPingP99)},
		{"", work("past-connect", 3, by(report.TCP, Attached, Released), connects(500, 0), pastConnect)},
		{"", work("offered", 1, by(report.TCP, Plain), connects(15, 110*time.Millisecond), offered)},
		{"", work("connections", 1, most(), connectionRate(8), rate8, rate8P50, rate8P99)},
	}
	if quick {
		return profiled(list)
	}
	list = append(list,
		choice{"iperf3", work("bulk8", 1, most(), bulk(8), bulk8, bulk8CPU)},
		choice{"sockperf", work("ping-4k", 1, most(Latency), pingPong(4096), ping4K, ping4KP99)},
		choice{"wrk", work("web", 1, most(), web(false), webKept)},
		choice{"wrk", work("web-close", 1, most(), web(true), webClosed)},
		choice{"", work("connections-1", 1, most(), connectionRate(1), rate1, rate1P50, rate1P99)},
	)
	for size := 1 << 10; size <= 4<<20; size <<= 2 {
		list = append(list, choice{"", work("sizes", 1, by(report.TCP, Shm, Soft1500, Soft9000), writes(size), sizeMetric(size))})
	}
	idle := work("idle", 1, by(Shm, Soft9000), idleConnections, idleFlow, idleCPU)
	idle.Rounds, idle.Limit = 1, 2*time.Minute
	return profiled(append(list, choice{"", idle}))
}

// sampled are the variants whose profiles say something that those of others do
// not, by work. Connections that are one every tenth of a second, or idle, leave
// nothing to look at.
var sampled = map[string][]string{
	"bulk":          {report.TCP, Shm, Soft1500, Soft9000, RC1500, RC9000},
	"bulk8":         {report.TCP, Shm, Soft1500},
	"ping":          {report.TCP, Shm, Latency, Soft1500},
	"ping-4k":       {report.TCP, Shm, Soft1500},
	"redis-c1":      {report.TCP, Shm, Latency, Soft1500},
	"redis-c50":     {report.TCP, Shm, Soft1500, Auto},
	"redis-P16":     {report.TCP, Shm, Soft1500},
	"web":           {report.TCP, Shm, Soft1500},
	"web-close":     {report.TCP, Shm, Auto},
	"connections":   {report.TCP, Shm, Soft1500, Auto},
	"connections-1": {report.TCP, Shm, Auto},
	"past-bulk":     {report.TCP, Attached, Released},
	"past-ping":     {report.TCP, Attached, Released},
	"past-connect":  {report.TCP, Attached, Released},
}

// ProfiledWorks lists what profiles of everything call their works.
func ProfiledWorks() (names []string) {
	for _, c := range works(nil, false) {
		if len(c.work.Profiled) > 0 {
			names = append(names, c.work.Metrics[0].Name)
		}
	}
	return names
}

// profiled adds what profiles need. Of the sizes of writes the smallest says
// what bulk does not.
func profiled(list []choice) []choice {
	for i := range list {
		w := &list[i].work
		w.Profiled = sampled[w.Name]
		switch w.Name {
		case "ping", "ping-4k", "past-ping":
			w.Lead = 2400 * time.Millisecond // of sockperf: see pingPong
		case "past-connect":
			w.Long = connects(40000, 0)
		case "sizes":
			if w.Metrics[0] == sizeMetric(1<<10) {
				w.Profiled = []string{report.TCP, Shm, Soft1500}
			}
		}
	}
	return list
}

// sizeMetric is the metric of writes of one size.
func sizeMetric(size int) Metric {
	name := fmt.Sprintf("%d KiB", size>>10)
	if size >= 1<<20 {
		name = fmt.Sprintf("%d MiB", size>>20)
	}
	return Metric{"writes of " + name, "Gbit/s", report.More}
}
