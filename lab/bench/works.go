package bench

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/internal/comparison"
)

// work is a load and the ways of doing it: a row in the table of everything that is measured.
type work struct {
	name  string // selects it in --only
	title string // its name in reports, which the names of the load's metrics follow
	load  load
	ways  []string
	// See [comparison.Work].
	times, rounds int
	limit         time.Duration
	// profiled says that perf samples it, done in the ways of sampled.
	profiled bool
}

// Titles of works that tables of ratios and the page refer to.
const (
	bulk1      = "bulk, 1 stream"
	ping64     = "ping-pong 64 B"
	redisC1    = "redis -c1"
	redisC50   = "redis -c50"
	redisP16   = "redis -c50 -P16"
	web1K      = "nginx, 1 KiB, 16 connections kept"
	web1M      = "nginx, 1 MiB, 4 connections kept"
	webClosed  = "nginx, a connection per request"
	pastBulk   = "not carried: bulk"
	pastPing   = "not carried: ping-pong 64 B"
	pastOpen   = "not carried: connect()"
	offered    = "not carried: connect() with an option"
	rate8      = "connections, 8 at a time"
	coldRate   = "connections, cold peer"
	besidePing = "beside bulk: ping-pong 64 B"
	besideRate = "beside bulk: connections, 8 at a time"
	idle       = "idle connections"
)

// local is the prefix of the titles of works on one host.
const local = "loopback: "

// Ways of most works, and of those that bypass a gateway.
var (
	most = []string{comparison.TCP, TwoProxies, Shm, Soft1500, Between1500, Auto}
	past = []string{comparison.TCP, Attached, Released}
)

func and(list []string, more ...string) []string { return append(slices.Clone(list), more...) }

// works returns all works, in the order of the rounds.
func works() []work {
	promoted := []work{
		{name: "bulk", title: bulk1, load: bulk, ways: and(most, InProcess, TCP9000, Soft9000, Between9000, RC1500, RC9000), profiled: true},
		{name: "ping", title: ping64, load: pingPong, ways: and(most, InProcess, InProcessSpin), profiled: true},
		{name: "redis-c1", title: redisC1, load: redis(4000, "-c", "1"), ways: and(most, InProcess), profiled: true},
		{name: "redis-c50", title: redisC50, load: redis(20000, "-c", "50"), ways: and(most, InProcess), profiled: true},
		{name: "redis-P16", title: redisP16, load: redis(100000, "-c", "50", "-P", "16"), ways: and(most, InProcess)},
		{name: "web-1k", title: web1K, load: web("/1k", 16, false), ways: and(most, InProcess), profiled: true},
		{name: "web-1m", title: web1M, load: web("/1m", 4, false), ways: and(most, InProcess)},
		{name: "web-close", title: webClosed, load: web("/", 16, true), ways: and(most, InProcess), profiled: true},
		{name: "beside-ping", title: besidePing, load: beside(pingPong, 2), ways: and(most, InProcess)},
	}
	return slices.Concat(promoted, onLoopback(promoted), []work{
		{name: "past-bulk", title: pastBulk, load: bulk, ways: past, times: 2, profiled: true},
		{name: "past-ping", title: pastPing, load: pingPong, ways: past, times: 2, profiled: true},
		{name: "past-connect", title: pastOpen, load: connects(500, 0), ways: past, times: 3},
		{name: "offered", title: offered, load: connects(15, 110*time.Millisecond), ways: []string{comparison.TCP, Plain}},
		{name: "connections", title: rate8, load: web("/", 8, true), ways: most, profiled: true},
		{name: "beside-connections", title: besideRate, load: beside(web("/", 8, true), 1), ways: most},
		{name: "cold", title: coldRate, load: coldPeer, ways: []string{comparison.TCP, TwoProxies, Shm, Soft1500}},
		{name: "idle", title: idle, load: idleConnections, ways: []string{comparison.TCP, Shm, Soft1500}, rounds: 1, limit: 2 * time.Minute},
	})
}

// onLoopback returns works on one host, for programs with the library and without.
func onLoopback(list []work) (all []work) {
	for _, w := range list {
		w.name, w.title, w.profiled = loopback+w.name, local+w.title, false
		var ways []string
		for _, v := range w.ways {
			if slices.Contains([]string{comparison.TCP, InProcess, InProcessSpin}, v) {
				ways = append(ways, loopback+v)
			}
		}
		w.ways = ways
		all = append(all, w)
	}
	return all
}

// metrics returns the metrics of a work, with their names in reports.
func (w *work) metrics() (list []comparison.Metric) {
	for _, m := range w.load.metrics {
		m.Name = w.title + m.Name
		list = append(list, m)
	}
	return list
}

// among returns the ways of a work that exist in ways, each followed by that of the other gateway.
func (w *work) among(ways map[string]way) (list []way) {
	for _, name := range w.ways {
		for _, name := range []string{name, otherPrefix + name} {
			if by, ok := ways[name]; ok {
				list = append(list, by)
			}
		}
	}
	return list
}

// done returns the work, done in the given ways.
func (w *work) done(ways []way) comparison.Work {
	r := comparison.Work{Name: w.name, Metrics: w.metrics(), Times: w.times, Rounds: w.rounds, Limit: w.limit, NoWarmUp: w.load.noWarmUp}
	for _, by := range ways {
		if w.load.native && by.server != nil && by.server.promotion != nil {
			by.begin = by.server.promotion.unpromoted(by.server)
		}
		if w.load.native && by.kind() == Between1500 { // few such connections live long enough to be promoted
			by.begin = nil
		}
		r.Cells = append(r.Cells, comparison.Cell{Variant: by.variant, Run: func(ctx context.Context, d time.Duration) ([]float64, error) {
			return by.verified(ctx, w.load.do, d)
		}})
	}
	return r
}

// missing returns a program of a work that is not installed, or "".
func (w *work) missing() string {
	for p := range strings.FieldsSeq(w.load.programs) {
		if !installed(p) {
			return p
		}
	}
	return ""
}
