package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/bench/report"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// quotient is a ratio of two ways of the same work.
type quotient struct{ metric, variant, base string }

// target is a ratio that the project aims at: that of one quotient, or of
// several the worst.
type target struct {
	key   string
	worst report.Better // the direction that is better
	of    []quotient
}

// targets are those of P1 to P5, in the order they are printed.
//
// P3 with action auto and P4 are promises about several works or ways at once;
// their ratio is that of the one that keeps the promise worst. P5 is a reliable
// connection of the soft device beside one stream of iperf3 over a link of the
// same MTU; its whole path, iperf3 through both gateways, is among the details.
var targets = []target{
	{"p1_vs_tcp", report.More, []quotient{{bulk1.Name, Shm, report.TCP}}},
	{"p1_vs_chain", report.More, []quotient{{bulk1.Name, Shm, TwoProxies}}},
	{"p1_cpu_vs_chain", report.Less, []quotient{{bulk1CPU.Name, Shm, TwoProxies}}},
	{"p2_vs_tcp", report.Less, []quotient{{ping64.Name, Shm, report.TCP}}},
	{"p2_vs_chain", report.Less, []quotient{{ping64.Name, Shm, TwoProxies}}},
	{"p2_latency_profile_vs_tcp", report.Less, []quotient{{ping64.Name, Latency, report.TCP}}},
	{"p3_c1_vs_chain", report.More, []quotient{{redisC1.Name, Shm, TwoProxies}}},
	{"p3_c50_vs_chain", report.More, []quotient{{redisC50.Name, Shm, TwoProxies}}},
	{"p3_p16_vs_chain", report.More, []quotient{{redisP16.Name, Shm, TwoProxies}}},
	{"p3_auto_vs_tcp", report.More, []quotient{
		{redisC1.Name, Auto, report.TCP}, {redisC50.Name, Auto, report.TCP}, {redisP16.Name, Auto, report.TCP},
	}},
	{"p4_throughput", report.More, []quotient{{pastBulk.Name, Attached, report.TCP}, {pastBulk.Name, Released, report.TCP}}},
	{"p4_rtt", report.Less, []quotient{{pastPing.Name, Attached, report.TCP}, {pastPing.Name, Released, report.TCP}}},
	{"p4_connect", report.Less, []quotient{
		{pastConnect.Name, Attached, report.TCP}, {pastConnect.Name, Released, report.TCP}, {offered.Name, Plain, report.TCP},
	}},
	{"p5_1500", report.More, []quotient{{bulk1.Name, RC1500, report.TCP}}},
	{"p5_9000", report.More, []quotient{{bulk1.Name, RC9000, TCP9000}}},
}

// beside are ratios that are aimed at too, and only told.
var beside = []target{
	{"p5_1500, whole path", report.More, []quotient{{bulk1.Name, Soft1500, report.TCP}}},
	{"p5_9000, whole path", report.More, []quotient{{bulk1.Name, Soft9000, TCP9000}}},
	{"p8, connections per second", report.More, []quotient{{rate8.Name, Shm, TwoProxies}}},
	{"p8 with auto", report.More, []quotient{{rate8.Name, Auto, report.TCP}}},
}

// ErrMissing says that a ratio could not be made: every round of it failed, or a
// program is missing.
var ErrMissing = errors.New("ratios are missing")

// Ratios writes the ratios of the targets P1 to P5, medians of those of the
// rounds, as one line of JSON to line, and each with its spread to details. One
// that cannot be had is null, and makes the error.
func Ratios(r *paper.Report, line, details io.Writer) error {
	var missing []string
	var out strings.Builder
	for i, t := range targets {
		s := t.spread(r, details)
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
	for _, t := range beside {
		t.spread(r, details)
	}
	if _, err := fmt.Fprintf(line, "{%s}\n", &out); err != nil {
		return fmt.Errorf("ratios: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s; what failed is said above", ErrMissing, strings.Join(missing, ", "))
	}
	return nil
}

// spread is that of the worst quotient; none if one is missing.
func (t *target) spread(r *paper.Report, details io.Writer) report.Spread {
	var all report.Spread
	for i, q := range t.of {
		s, ok := r.Ratio(q.metric, q.variant, q.base)
		if !ok {
			fmt.Fprintf(details, "%s: no ratio of %s, %s to %s\n", t.key, q.metric, q.variant, q.base)
			return report.Spread{}
		}
		fmt.Fprintf(details, "%s: %.3f (%.2f – %.2f, %d rounds): %s, %s to %s, %s is better\n",
			t.key, s.Median, s.Min, s.Max, s.N, q.metric, q.variant, q.base, t.worst)
		if i == 0 || t.worst == report.More && s.Median < all.Median || t.worst == report.Less && s.Median > all.Median {
			all = s
		}
	}
	return all
}
