package bench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/bench/load"
	"github.com/smcgw/smcgw/lab/testnet"
)

// bottleneck makes the first host's way out as slow as a line with a drop-tail
// queue. The burst is below two packets: trains and super-packets of TCP are cut
// before, and each packet has its own luck.
func (l *loads) bottleneck(mbit, queue int) {
	l.tb.Helper()
	l.tc("qdisc", "replace", "dev", l.h1.Device, "root", "tbf",
		"rate", fmt.Sprintf("%dmbit", mbit), "burst", fmt.Sprint(2*l.mtu), "limit", fmt.Sprint(queue))
}

func (l *loads) tc(args ...string) {
	l.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := l.h1.Run(ctx, "tc", args...)
	require.NoError(l.tb, err)
}

// rivals are two streams through the same bottleneck, the second begins later.
type rivals struct {
	first, second load.Job
	head          time.Duration // of the first
}

// share runs both and returns what each got of the line while both were there
// for a while, in bits per second.
func (l *loads) share(r rivals) (first, second float64, all []load.Result) {
	l.tb.Helper()
	results := make([]load.Result, 2)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	start := time.Now()
	for i, j := range []load.Job{r.first, r.second} {
		wg.Go(func() { results[i], errs[i] = l.try(j) })
		if i == 0 {
			time.Sleep(r.head)
		}
	}
	wg.Wait()
	require.NoError(l.tb, errs[0])
	require.NoError(l.tb, errs[1])
	from := start.Add(r.head + settling)
	to := start.Add(time.Duration(min(r.first.Seconds, r.head.Seconds()+r.second.Seconds) * 1e9))
	return results[0].Within(from, to), results[1].Within(from, to), results
}

// settling is how long a second stream may take to find its share.
const settling = time.Second

// jain is the fairness index of two shares: 1 if they are equal, 1/2 if one has
// everything.
func jain(a, b float64) float64 {
	if a == 0 && b == 0 {
		return 0
	}
	return (a + b) * (a + b) / (2 * (a*a + b*b))
}

// congestionControls of TCP that the kernel has.
func congestionControls(tb testing.TB) (list []string) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	require.NoError(tb, err)
	for _, cc := range []string{"reno", "cubic", "bbr"} {
		if containsWord(string(b), cc) {
			list = append(list, cc)
		}
	}
	return list
}

// line is a bottleneck: its rate, its queue, and the time that every packet
// takes through it besides, in each direction.
type line struct {
	mbit, queue int
	delay       time.Duration
}

func (l line) String() string {
	return fmt.Sprintf("%dMbit-%dKB-%v", l.mbit, l.queue/1000, 2*l.delay)
}

// lines are one within a rack with the queue of a small switch, and one between
// cities with a queue of a bandwidth-delay product.
var lines = []line{{200, 100_000, 0}, {100, 250_000, 10 * time.Millisecond}}

func softStream(seconds float64) load.Job {
	return load.Job{Kind: "soft", Op: "stream", Size: 64 << 10, Depth: 128, Seconds: seconds}
}

func tcpStream(cc string, seconds float64) load.Job {
	return load.Job{Kind: "tcp", Op: "stream", CC: cc, Seconds: seconds}
}

// BenchmarkSoftFairness is a soft stream and one of the kernel's TCP through
// one bottleneck. Two of TCP beside them show what is usual.
func BenchmarkSoftFairness(b *testing.B) {
	for _, at := range lines {
		b.Run(at.String(), func(b *testing.B) {
			l := overSwitch(b, 1500)
			l.bottleneck(at.mbit, at.queue)
			require.NoError(b, l.net.SetBox(testnet.Box{Delay: at.delay}))
			w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "\n%s\tfirst Mbit/s\tsecond Mbit/s\tJain\tretransmits\n", b.Name())
			for b.Loop() {
				for _, cc := range congestionControls(b) {
					for _, r := range []rivals{
						{tcpStream(cc, 7), softStream(6), time.Second},
						{softStream(7), tcpStream(cc, 6), time.Second},
						{tcpStream(cc, 7), tcpStream(cc, 6), time.Second},
					} {
						x, y, all := l.share(r)
						fmt.Fprintf(w, "%s %s then %s\t%.1f\t%.1f\t%.3f\t%d\n", cc, r.first.Kind, r.second.Kind, x/1e6, y/1e6, jain(x, y),
							all[0].Source.Retransmits+all[1].Source.Retransmits)
						b.ReportMetric(jain(x, y), fmt.Sprintf("jain-%s-%s-%s", cc, r.first.Kind, r.second.Kind))
					}
				}
			}
			_ = w.Flush()
		})
	}
}

// BenchmarkSoftLoss is one stream that loses one packet in a hundred.
func BenchmarkSoftLoss(b *testing.B) {
	for _, at := range []line{{500, 250_000, 0}, {100, 250_000, 10 * time.Millisecond}} {
		b.Run(at.String(), func(b *testing.B) {
			l := overSwitch(b, 1500)
			l.bottleneck(at.mbit, at.queue)
			require.NoError(b, l.h1.SetBox(testnet.Box{Delay: at.delay, Loss: 10}))
			require.NoError(b, l.h2.SetBox(testnet.Box{Delay: at.delay}))
			var c contest
			for b.Loop() {
				for _, cc := range congestionControls(b) {
					r := l.run(tcpStream(cc, 3))
					c.enter(cc, r.BitsPerSecond()/1e6, r.CPUPerGB())
				}
				r := l.run(softStream(3))
				c.enter("soft", r.BitsPerSecond()/1e6, r.CPUPerGB())
				b.Logf("soft: %+v", r.Source)
			}
			c.report(b, "Mbit/s", "cubic")
		})
	}
}
