package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/internal/comparison"
)

// Usual is Linux's default congestion control.
const Usual = "cubic"

// pass is a comparison with one congestion control. A quick comparison has two passes.
type pass uint8

const (
	usualPass  pass = 1 << iota // with [Usual]
	pacedPass                   // with bbr, or reno if the kernel has no bbr
	bothPasses = usualPass | pacedPass
)

// of returns the report of a pass: the first one with [Usual], or the last one. A comparison with a single congestion
// control is the paced pass, whichever it is.
func (p pass) of(reports []*comparison.Report) *comparison.Report {
	if p == pacedPass {
		return reports[len(reports)-1]
	}
	i := slices.IndexFunc(reports, func(r *comparison.Report) bool { return r.Machine.CongestionControl == Usual })
	if i < 0 {
		return &comparison.Report{}
	}
	return reports[i]
}

// quotient is a ratio of two ways for the same metric in one pass.
type quotient struct {
	pass          pass
	metric        string
	variant, base string
}

// target is a ratio at which the project aims: that of a quotient, or the worst of several.
type target struct {
	key    string
	better comparison.Better
	aim    float64 // at least, or at most; 0: no aim
	of     []quotient
}

// paced returns a target for the paced pass.
func paced(key string, better comparison.Better, aim float64, of ...quotient) target {
	for i := range of {
		of[i].pass = pacedPass
	}
	return target{key, better, aim, of}
}

// usual returns a target for the pass with the default of most hosts.
func usual(key string, better comparison.Better, aim float64, of ...quotient) target {
	for i := range of {
		of[i].pass = usualPass
	}
	return target{key, better, aim, of}
}

// vs returns a quotient with respect to plain TCP.
func vs(metric string, variant string) quotient {
	return quotient{metric: metric, variant: variant, base: comparison.TCP}
}

// vsChain returns a quotient with respect to two HAProxies.
func vsChain(metric string, variant string) quotient {
	return quotient{metric: metric, variant: variant, base: TwoProxies}
}

// targets are the ratios of the last line, in its order: for each key the median over the rounds, or null if a program
// is missing or every round failed. Of several quotients it is the worst. Paced ones use bbr, or reno if the kernel has
// no bbr.
//
// P3 with action auto and P4 are promises about several works or ways at once; their ratio is that of the one that
// keeps the promise worst. P5 is a reliable connection of the soft device compared with one stream of iperf3 over a
// link of the same MTU; its whole path, iperf3 through both gateways, is among the details.
var targets = []target{
	usual("inproc_bulk_vs_tcp", comparison.More, 2.5, vs(bulk1, InProcess), vs(local+bulk1, InProcess)),
	usual("inproc_cpu_vs_tcp", comparison.Less, 0.4, vs(bulk1+programsCPU, InProcess), vs(local+bulk1+programsCPU, InProcess)),
	usual("inproc_ping_p50_vs_tcp", comparison.Less, 1, vs(ping64+median, InProcess), vs(local+ping64+median, InProcess)),
	usual("inproc_ping_spin_p50_vs_tcp", comparison.Less, 0.1, vs(ping64+median, InProcessSpin)),
	usual("inproc_redis_c1_vs_tcp", comparison.More, 1, vs(redisC1, InProcess), vs(local+redisC1, InProcess)),
	usual("inproc_redis_c50_vs_tcp", comparison.More, 1.8, vs(redisC50, InProcess), vs(local+redisC50, InProcess)),
	usual("inproc_redis_p16_vs_tcp", comparison.More, 1.5, vs(redisP16, InProcess), vs(local+redisP16, InProcess)),
	usual("inproc_http_vs_tcp", comparison.More, 1.5, vs(web1K, InProcess), vs(web1M, InProcess), vs(local+web1K, InProcess), vs(local+web1M, InProcess)),
	usual("inproc_connect_vs_tcp", comparison.More, 0.98, vs(webClosed, InProcess), vs(local+webClosed, InProcess)),
	usual("inproc_beside_bulk_p99_vs_tcp", comparison.Less, 1.2, vs(besidePing+p99, InProcess), vs(local+besidePing+p99, InProcess)),
	paced("p1_vs_tcp", comparison.More, 1.1, vs(bulk1, Shm)),
	paced("p1_vs_chain", comparison.More, 2, vsChain(bulk1, Shm)),
	paced("p1_cpu_vs_chain", comparison.Less, 0, vsChain(bulk1+cpu, Shm)),
	paced("p2_vs_tcp", comparison.Less, 1.5, vs(ping64+median, Shm)),
	paced("p2_vs_chain", comparison.Less, 0, vsChain(ping64+median, Shm)),
	paced("p3_c1_vs_chain", comparison.More, 1.1, vsChain(redisC1, Shm)),
	paced("p3_c50_vs_chain", comparison.More, 1.2, vsChain(redisC50, Shm)),
	paced("p3_p16_vs_chain", comparison.More, 1, vsChain(redisP16, Shm)),
	paced("p3_auto_vs_tcp", comparison.More, 0.97, vs(redisC1, Auto), vs(redisC50, Auto), vs(redisP16, Auto)),
	paced("p4_throughput", comparison.More, 0.97, vs(pastBulk, Attached), vs(pastBulk, Released)),
	paced("p4_rtt", comparison.Less, 1.03, vs(pastPing+median, Attached), vs(pastPing+median, Released)),
	paced("p4_connect", comparison.Less, 1.1, vs(pastOpen, Attached), vs(pastOpen, Released), vs(offered, Plain)),
	paced("p5_1500", comparison.More, 1, vs(bulk1, RC1500)),
	paced("p5_9000", comparison.More, 2, quotient{metric: bulk1, variant: RC9000, base: TCP9000}),
	usual("cubic_shm_vs_tcp", comparison.More, 0.75, vs(bulk1, Shm)),
	usual("cubic_shm_cpu_vs_tcp", comparison.Less, 1.5, vs(bulk1+cpu, Shm)),
	usual("cubic_soft_vs_tcp", comparison.More, 0.45, vs(bulk1, Soft1500)),
	usual("setup_shm_vs_chain", comparison.More, 1, vsChain(rate8, Shm)),
	usual("setup_soft_vs_chain", comparison.More, 0.7, vsChain(rate8, Soft1500)),
	usual("beside_bulk_p99_vs_tcp", comparison.Less, 5, vs(besidePing+p99, Shm), vs(besidePing+p99, Soft1500)),
	{"auto_worst_vs_tcp", comparison.More, 0.97, autoEverywhere()},
}

// autoWorks are the metrics of a quick comparison that are also measured with action auto: the first one of each work.
var autoWorks = []string{bulk1, ping64 + median, redisC1, redisC50, redisP16, rate8, besidePing + median}

func autoEverywhere() (list []quotient) {
	for _, m := range autoWorks {
		list = append(list, quotient{usualPass, m, Auto, comparison.TCP})
	}
	return list
}

// told are ratios that are only reported.
var told = []target{
	usual("64 bytes in process, 99 %", comparison.Less, 0, vs(ping64+p99, InProcess), vs(local+ping64+p99, InProcess)),
	usual("redis -c50 in process, processor time of a request", comparison.Less, 0, vs(redisC50+programsCPU, InProcess), vs(local+redisC50+programsCPU, InProcess)),
	paced("p5_1500, whole path", comparison.More, 0, vs(bulk1, Soft1500)),
	usual("the stream over shm, with two proxies", comparison.More, 0, vsChain(bulk1, Shm)),
	usual("connections over shm", comparison.More, 0, vs(rate8, Shm)),
	usual("connections over soft", comparison.More, 0, vs(rate8, Soft1500)),
	usual("small beside bulk over shm, median", comparison.Less, 0, vs(besidePing+median, Shm)),
	usual("small beside bulk over soft, median", comparison.Less, 0, vs(besidePing+median, Soft1500)),
}

// needed returns the ways of each metric that the ratios of the given passes need.
func needed(passes pass) map[string][]string {
	need := map[string][]string{}
	for _, t := range slices.Concat(targets, told) {
		for _, q := range t.of {
			if q.pass&passes != 0 {
				need[q.metric] = append(need[q.metric], q.variant, q.base)
			}
		}
	}
	return need
}

// ErrMissing means that a ratio is missing, because every round failed or a program is not installed.
var ErrMissing = errors.New("ratios are missing")

// Ratios writes the ratios of the targets, medians over the rounds, as one line of JSON to line, and each with its
// spread to details. A missing ratio is null, and causes an error. The reports are those of [Quick], or one of [Run].
func Ratios(reports []*comparison.Report, line, details io.Writer) error {
	var missing []string
	var out strings.Builder
	for i, t := range targets {
		s := t.spread(reports, details)
		value := "null"
		if s.N > 0 {
			value = strconv.FormatFloat(math.Round(s.Median*1000)/1000, 'f', -1, 64)
		} else {
			missing = append(missing, t.key)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		key, err := json.Marshal(t.key)
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s:%s", key, value)
	}
	for _, t := range told {
		t.spread(reports, details)
	}
	if _, err := fmt.Fprintf(line, "{%s}\n", &out); err != nil {
		return fmt.Errorf("ratios: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s; what failed is said above", ErrMissing, strings.Join(missing, ", "))
	}
	return nil
}

// spread returns the spread of the worst quotient, or none if one is missing.
func (t *target) spread(reports []*comparison.Report, details io.Writer) comparison.Spread {
	var all comparison.Spread
	for i, q := range t.of {
		r := q.pass.of(reports)
		variant, base := q.sides(r, t.better)
		s, ok := r.Ratio(q.metric, variant, base)
		if !ok {
			fmt.Fprintf(details, "%s: no ratio of %s, %s to %s\n", t.key, q.metric, variant, base)
			return comparison.Spread{}
		}
		fmt.Fprintf(details, "%s: %.3f (%.2f – %.2f, %d rounds): %s, %s to %s, %s is better, %s\n",
			t.key, s.Median, s.Min, s.Max, s.N, q.metric, variant, base, t.better, r.Machine.CongestionControl)
		q.versusOther(t, r, details)
		if i == 0 || t.better == comparison.More && s.Median < all.Median || t.better == comparison.Less && s.Median > all.Median {
			all = s
		}
	}
	if t.aim != 0 {
		fmt.Fprintf(details, "%s: aimed at %s: %s\n", t.key, t.bound(), t.verdict(all.Median))
	}
	return all
}

func (t *target) bound() string {
	if t.better == comparison.Less {
		return "≤ " + comparison.Number(t.aim)
	}
	return "≥ " + comparison.Number(t.aim)
}

// verdict compares what a reader sees: two decimals.
func (t *target) verdict(median float64) string {
	seen := math.Round(median*100) / 100
	if t.better == comparison.Less && seen > t.aim || t.better == comparison.More && seen < t.aim {
		return "missed"
	}
	return "met"
}

// sides returns what to divide by what. Figures that are better when lower are inverted if the target is better when
// higher.
func (q *quotient) sides(r *comparison.Report, better comparison.Better) (variant, base string) {
	if list := r.Of(q.metric); len(list) > 0 && list[0].Better != better {
		return q.base, q.variant
	}
	return q.variant, q.base
}

// versusOther writes the same ratio for the other gateway, and the ratio of the two gateways, from values of the same
// rounds.
func (q *quotient) versusOther(t *target, r *comparison.Report, details io.Writer) {
	o := *q
	o.variant = otherPrefix + q.variant
	variant, base := o.sides(r, t.better)
	if s, ok := r.Ratio(q.metric, variant, base); ok {
		fmt.Fprintf(details, "  the other gateway: %.3f (%.2f – %.2f, %d rounds)", s.Median, s.Min, s.Max, s.N)
		o.base, o.variant = o.variant, q.variant
		variant, base = o.sides(r, t.better)
		s, _ = r.Ratio(q.metric, variant, base)
		fmt.Fprintf(details, "; this one to it: %.3f (%.2f – %.2f)\n", s.Median, s.Min, s.Max)
	}
}
