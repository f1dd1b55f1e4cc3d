package bench

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/bench/comparison"
)

// Metrics, by what the report calls them.
var (
	bulk1       = Metric{"bulk, 1 stream", "Gbit/s", comparison.More}
	bulk1CPU    = Metric{"bulk, 1 stream, CPU", "s/GB", comparison.Less}
	bulk1GW     = Metric{"bulk, 1 stream, CPU of the gateways", "s/GB", comparison.Less}
	bulk1Own    = Metric{"bulk, 1 stream, CPU of the programs", "s/GB", comparison.Less}
	bulk8       = Metric{"bulk, 8 streams", "Gbit/s", comparison.More}
	bulk8CPU    = Metric{"bulk, 8 streams, CPU", "s/GB", comparison.Less}
	bulk8GW     = Metric{"bulk, 8 streams, CPU of the gateways", "s/GB", comparison.Less}
	bulk8Own    = Metric{"bulk, 8 streams, CPU of the programs", "s/GB", comparison.Less}
	ping64      = Metric{"ping-pong 64 B, median", "µs", comparison.Less}
	ping64P99   = Metric{"ping-pong 64 B, 99 %", "µs", comparison.Less}
	ping64GW    = Metric{"ping-pong 64 B, CPU of the gateways", "µs", comparison.Less}
	ping4K      = Metric{"ping-pong 4 KiB, median", "µs", comparison.Less}
	ping4KP99   = Metric{"ping-pong 4 KiB, 99 %", "µs", comparison.Less}
	ping4KGW    = Metric{"ping-pong 4 KiB, CPU of the gateways", "µs", comparison.Less}
	redisC1     = Metric{"redis -c1", "kreq/s", comparison.More}
	redisC50    = Metric{"redis -c50", "kreq/s", comparison.More}
	redisP16    = Metric{"redis -c50 -P16", "kreq/s", comparison.More}
	redis1Own   = Metric{"redis -c1, CPU of the programs", "µs", comparison.Less}
	redis50Own  = Metric{"redis -c50, CPU of the programs", "µs", comparison.Less}
	redisP16Own = Metric{"redis -c50 -P16, CPU of the programs", "µs", comparison.Less}
	web1K       = Metric{"nginx, 1 KiB, 16 connections kept", "kreq/s", comparison.More}
	web1M       = Metric{"nginx, 1 MiB, 4 connections kept", "kreq/s", comparison.More}
	webKept     = Metric{"nginx, 16 connections kept", "kreq/s", comparison.More}
	webClosed   = Metric{"nginx, a connection per request", "kreq/s", comparison.More}

	pastBulk    = Metric{"not carried: bulk", "Gbit/s", comparison.More}
	pastBulkCPU = Metric{"not carried: bulk, CPU", "s/GB", comparison.Less}
	pastBulkGW  = Metric{"not carried: bulk, CPU of the gateways", "s/GB", comparison.Less}
	pastBulkOwn = Metric{"not carried: bulk, CPU of the programs", "s/GB", comparison.Less}
	pastPing    = Metric{"not carried: ping-pong 64 B, median", "µs", comparison.Less}
	pastPingP99 = Metric{"not carried: ping-pong 64 B, 99 %", "µs", comparison.Less}
	pastPingGW  = Metric{"not carried: ping-pong 64 B, CPU of the gateways", "µs", comparison.Less}
	pastConnect = Metric{"not carried: connect()", "µs", comparison.Less}
	offered     = Metric{"not carried: connect() with an option", "µs", comparison.Less}

	rate1    = Metric{"connections, one at a time", "1/s", comparison.More}
	rate1P50 = Metric{"connections, one at a time, median", "µs", comparison.Less}
	rate1P99 = Metric{"connections, one at a time, 99 %", "µs", comparison.Less}
	rate1CPU = Metric{"connections, one at a time, CPU", "µs", comparison.Less}
	rate1GW  = Metric{"connections, one at a time, CPU of the gateways", "µs", comparison.Less}
	rate8    = Metric{"connections, 8 at a time", "1/s", comparison.More}
	rate8P50 = Metric{"connections, 8 at a time, median", "µs", comparison.Less}
	rate8P99 = Metric{"connections, 8 at a time, 99 %", "µs", comparison.Less}
	rate8CPU = Metric{"connections, 8 at a time, CPU", "µs", comparison.Less}
	rate8GW  = Metric{"connections, 8 at a time, CPU of the gateways", "µs", comparison.Less}

	coldRate = Metric{"connections, cold peer", "1/s", comparison.More}
	coldP50  = Metric{"connections, cold peer, median", "µs", comparison.Less}

	besidePing      = Metric{"beside bulk: ping-pong 64 B, median", "µs", comparison.Less}
	besidePingP99   = Metric{"beside bulk: ping-pong 64 B, 99 %", "µs", comparison.Less}
	besidePingBulk  = Metric{"beside bulk: the stream with a ping-pong", "Gbit/s", comparison.More}
	besideRate8     = Metric{"beside bulk: connections, 8 at a time", "1/s", comparison.More}
	besideRate8P50  = Metric{"beside bulk: connections, median", "µs", comparison.Less}
	besideRate8P99  = Metric{"beside bulk: connections, 99 %", "µs", comparison.Less}
	besideRate8Bulk = Metric{"beside bulk: the stream with connections", "Gbit/s", comparison.More}

	idleFlow   = Metric{"idle connections, memory of both gateways", "KiB each", comparison.Less}
	idleOwn    = Metric{"idle connections, heap and stacks of one gateway", "KiB each", comparison.Less}
	idleShared = Metric{"idle connections, rings and queue pairs", "KiB each", comparison.Less}
	idleKernel = Metric{"idle connections, kernel objects of the machine", "KiB each", comparison.Less}
	idleCPU    = Metric{"idle connections, CPU of both gateways", "%", comparison.Less}
)

// onLoopback is a metric of the same work on one host.
func onLoopback(m Metric) Metric {
	m.Name = "loopback: " + m.Name
	return m
}

// On one host.
var (
	localBulk       = onLoopback(bulk1)
	localBulkCPU    = onLoopback(bulk1CPU)
	localBulkGW     = onLoopback(bulk1GW)
	localBulkOwn    = onLoopback(bulk1Own)
	localPing       = onLoopback(ping64)
	localPingP99    = onLoopback(ping64P99)
	localPingGW     = onLoopback(ping64GW)
	localC1         = onLoopback(redisC1)
	localC1Own      = onLoopback(redis1Own)
	localC50        = onLoopback(redisC50)
	localC50Own     = onLoopback(redis50Own)
	localP16        = onLoopback(redisP16)
	localP16Own     = onLoopback(redisP16Own)
	localWeb1K      = onLoopback(web1K)
	localWeb1M      = onLoopback(web1M)
	localClosed     = onLoopback(webClosed)
	localBeside     = onLoopback(besidePing)
	localBesideP99  = onLoopback(besidePingP99)
	localBesideBulk = onLoopback(besidePingBulk)
)

// choice is a work and the programs it needs.
type choice struct {
	programs string
	work     Work
}

// works lists everything.
func works(ways map[string]way) []choice {
	by := func(variants ...string) (list []way) {
		for _, v := range variants {
			for _, name := range []string{v, otherPrefix + v} {
				if w, ok := ways[name]; ok {
					list = append(list, w)
				}
			}
		}
		return list
	}
	// The ways of most works, with some of its own after plain TCP.
	most := func(own ...string) []way {
		list := append([]string{comparison.TCP}, own...)
		return by(append(list, TwoProxies, Shm, Auto, OneProxy, GoSplice, Soft1500, Soft9000, Attached, Released)...)
	}
	some := func(own ...string) []way {
		return by(append(append([]string{comparison.TCP}, own...), TwoProxies, Shm, Soft1500, Auto)...)
	}
	local := by(loopback+comparison.TCP, loopback+InProcess)
	list := []choice{
		{"iperf3", work("bulk", 1, most(InProcess, TCP9000, RC1500, RC9000), bulk(1), bulk1, bulk1CPU, bulk1GW, bulk1Own)},
		{"sockperf", work("ping", 1, most(InProcess, InProcessSpin, Latency), pingPong(64), ping64, ping64P99, ping64GW)},
		{"redis-benchmark", work("redis-c1", 1, most(InProcess, Latency), redis(4000, "-c", "1"), redisC1, redis1Own)},
		{"redis-benchmark", work("redis-c50", 1, most(InProcess), redis(20000, "-c", "50"), redisC50, redis50Own)},
		{"redis-benchmark", work("redis-P16", 1, most(InProcess), redis(100000, "-c", "50", "-P", "16"), redisP16, redisP16Own)},
		{"wrk", work("web-1k", 1, some(InProcess), web("/1k", 16, false), web1K)},
		{"wrk", work("web-1m", 1, some(InProcess), web("/1m", 4, false), web1M)},
		{"wrk", native(work("web-close", 1, most(InProcess), web("/", 16, true), webClosed))},
		{"iperf3 sockperf", work("beside-ping", 1, some(InProcess), besideBulk(pingPong(64), 2), besidePing, besidePingP99, besidePingBulk)},

		{"iperf3", work("loopback-bulk", 1, local, bulk(1), localBulk, localBulkCPU, localBulkGW, localBulkOwn)},
		{"sockperf", work("loopback-ping", 1, append(local, by(loopback+InProcessSpin)...), pingPong(64), localPing, localPingP99, localPingGW)},
		{"redis-benchmark", work("loopback-redis-c1", 1, local, redis(4000, "-c", "1"), localC1, localC1Own)},
		{"redis-benchmark", work("loopback-redis-c50", 1, local, redis(20000, "-c", "50"), localC50, localC50Own)},
		{"redis-benchmark", work("loopback-redis-P16", 1, local, redis(100000, "-c", "50", "-P", "16"), localP16, localP16Own)},
		{"wrk", work("loopback-web-1k", 1, local, web("/1k", 16, false), localWeb1K)},
		{"wrk", work("loopback-web-1m", 1, local, web("/1m", 4, false), localWeb1M)},
		{"wrk", native(work("loopback-web-close", 1, local, web("/", 16, true), localClosed))},
		{"iperf3 sockperf", work("loopback-beside-ping", 1, local, besideBulk(pingPong(64), 2), localBeside, localBesideP99, localBesideBulk)},

		{"iperf3", work("past-bulk", 2, by(comparison.TCP, Attached, Released), bulk(1), pastBulk, pastBulkCPU, pastBulkGW, pastBulkOwn)},
		{"sockperf", work("past-ping", 2, by(comparison.TCP, Attached, Released), pingPong(64), pastPing, pastPingP99, pastPingGW)},
		{"", work("past-connect", 3, by(comparison.TCP, Attached, Released), connects(500, 0), pastConnect)},
		{"", work("offered", 1, by(comparison.TCP, Plain), connects(15, 110*time.Millisecond), offered)},
		{"", work("connections", 1, most(), connectionRate(8), rate8, rate8P50, rate8P99, rate8CPU, rate8GW)},
		{"iperf3", work("beside-connections", 1, some(), besideBulk(connectionRate(8), 3), besideRate8, besideRate8P50, besideRate8P99, besideRate8Bulk)},
		{"", work("cold", 1, by(comparison.TCP, TwoProxies, Shm, Soft1500), coldPeer, coldRate, coldP50)},
		{"iperf3", work("bulk8", 1, most(), bulk(8), bulk8, bulk8CPU, bulk8GW, bulk8Own)},
		{"sockperf", work("ping-4k", 1, most(Latency), pingPong(4096), ping4K, ping4KP99, ping4KGW)},
		{"wrk", work("web", 1, most(), web("/", 16, false), webKept)},
		{"", work("connections-1", 1, most(), connectionRate(1), rate1, rate1P50, rate1P99, rate1CPU, rate1GW)},
	}
	for size := 1 << 10; size <= 4<<20; size <<= 2 {
		list = append(list, choice{"", work("sizes", 1, by(comparison.TCP, Shm, Soft1500, Soft9000), writes(size), sizeMetric(size))})
	}
	idle := work("idle", 1, by(comparison.TCP, Shm, Soft9000), idleConnections, idleFlow, idleOwn, idleShared, idleKernel, idleCPU)
	idle.Rounds, idle.Limit = 1, 2*time.Minute
	return profiled(append(list, choice{"", idle}))
}

// sampled are the variants whose profiles say something that those of others do
// not, by work. Connections that are one every tenth of a second, or idle, leave
// nothing to look at.
var sampled = map[string][]string{
	"bulk":          {comparison.TCP, Shm, Soft1500, Soft9000, RC1500, RC9000},
	"bulk8":         {comparison.TCP, Shm, Soft1500},
	"ping":          {comparison.TCP, Shm, Latency, Soft1500},
	"ping-4k":       {comparison.TCP, Shm, Soft1500},
	"redis-c1":      {comparison.TCP, Shm, Latency, Soft1500},
	"redis-c50":     {comparison.TCP, Shm, Soft1500, Auto},
	"redis-P16":     {comparison.TCP, Shm, Soft1500},
	"web":           {comparison.TCP, Shm, Soft1500},
	"web-close":     {comparison.TCP, Shm, Auto},
	"connections":   {comparison.TCP, Shm, Soft1500, Auto},
	"connections-1": {comparison.TCP, Shm, Auto},
	"past-bulk":     {comparison.TCP, Attached, Released},
	"past-ping":     {comparison.TCP, Attached, Released},
	"past-connect":  {comparison.TCP, Attached, Released},
}

// MetricNames lists what reports call the works, by each number that they yield.
func MetricNames() (names []string) {
	for _, c := range works(nil) {
		for _, m := range c.work.Metrics {
			names = append(names, m.Name)
		}
	}
	return names
}

// ProfiledWorks lists what profiles of everything call their works.
func ProfiledWorks() (names []string) {
	for _, c := range works(nil) {
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
		case "ping", "loopback-ping", "ping-4k", "past-ping":
			w.Lead, w.NoWarmUp = sockperfLead, true
		case "beside-ping", "loopback-beside-ping", "beside-connections":
			w.NoWarmUp = true // the works that they are of have it
		case "past-connect":
			w.Long = connects(40000, 0)
		case "sizes":
			if w.Metrics[0] == sizeMetric(1<<10) {
				w.Profiled = []string{comparison.TCP, Shm, Soft1500}
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
	return Metric{"writes of " + name, "Gbit/s", comparison.More}
}
