package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/procfs"
	"github.com/smcgw/smcgw/lab/daemon"
)

// metrics reads the metrics of a gateway.
func (s *soak) metrics(at *site) (daemon.Metrics, error) { return s.read(at.socket()) }

// read reads the metrics from an admin socket.
func (s *soak) read(socket string) (daemon.Metrics, error) {
	c := admin.NewClient(socket)
	defer c.Close()
	ctx, cancel := context.WithTimeout(s.life, 20*time.Second)
	defer cancel()
	return daemon.ReadMetrics(ctx, c)
}

// count adds up the demotions of all gateways.
func (s *soak) count() {
	var total int64
	for _, at := range s.capable {
		if r, err := s.metrics(at); err == nil {
			at.mu.Lock()
			at.latest = max(at.latest, int64(r.Sum("smcgw_demotions_total")))
			at.mu.Unlock()
		}
		at.mu.Lock()
		total += at.counted + at.latest
		at.mu.Unlock()
	}
	s.ledger.switched(total)
}

// last adds what a gateway that is about to end has counted, and returns it.
func (s *site) last() (counted int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counted = s.latest
	s.counted, s.latest = s.counted+counted, 0
	return counted
}

// also adds what a gateway has counted that no longer serves the host.
func (s *site) also(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted += n
}

// quietTime bounds the wait until a gateway without connections has forgotten the last of them; entries of ended
// connections stay for five seconds.
const quietTime = 30 * time.Second

// idle waits until the gateways have nothing to do and measures them.
func (s *soak) idle() map[*site]daemon.Metrics {
	s.ledger.say("settle and measure")
	began := time.Now()
	all := map[*site]daemon.Metrics{}
	var mu sync.Mutex // guards all
	s.each(func(at *site) {
		r, err := s.settled(at, began)
		if err != nil {
			s.broke(began, "gateway of "+at.Name+" does not settle", err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all[at] = r
	})
	s.count()
	return all
}

// settled returns the readings of a gateway that has no flow, no entry of one and nothing in quarantine, with the
// least heap between two collections.
func (s *soak) settled(at *site, began time.Time) (daemon.Metrics, error) {
	var r daemon.Metrics
	var err error
	for {
		if r, err = s.metrics(at); err != nil {
			return nil, err
		}
		left := r.Sum("smcgw_flows") + r[`smcgw_ebpf_map_entries{map="flows"}`] + r[`smcgw_registered_memory_bytes{kind="quarantined"}`]
		if left == 0 {
			break
		}
		if time.Since(began) > quietTime {
			return nil, fmt.Errorf("%w: flows %v, entries %v, quarantined %v bytes\n%s", errProgram, r.Sum("smcgw_flows"),
				r[`smcgw_ebpf_map_entries{map="flows"}`], r[`smcgw_registered_memory_bytes{kind="quarantined"}`], s.remains(at))
		}
		time.Sleep(200 * time.Millisecond)
	}
	return s.collected(at)
}

// remains describes what the gateway, and the kernel beside it, still have.
func (s *soak) remains(at *site) string {
	var b strings.Builder
	list, err := at.asking().Conns(s.life, report.ConnQuery{})
	if err != nil {
		return err.Error()
	}
	for i := range list.Conns {
		fmt.Fprintln(&b, line(&list.Conns[i]))
	}
	ctx, cancel := context.WithTimeout(s.life, 10*time.Second)
	defer cancel()
	sockets, err := at.Run(ctx, "ss", "-tnoe")
	fmt.Fprintln(&b, sockets, err)
	return b.String()
}

// collected queries a gateway until it has collected garbage so often that pools, which survive two collections, are
// empty; the queries themselves make garbage. The heap that it reports is the least after that. If a pool of memory
// regions gives some back meanwhile, the count starts anew: they are no longer reserved, but stay on the heap until
// the next collections.
func (s *soak) collected(at *site) (r daemon.Metrics, err error) {
	const collections, heap, pools = "go_gc_duration_seconds_count", "go_memstats_heap_alloc_bytes", 3
	first, least, held := -1.0, math.Inf(1), math.Inf(-1)
	for range 6000 {
		if r, err = s.metrics(at); err != nil {
			return nil, err
		}
		if first < 0 || reserved(r) < held {
			first, least = r[collections], math.Inf(1)
		}
		held = reserved(r)
		if r[collections] >= first+pools {
			least = min(least, r[heap])
		}
		if r[collections] > first+pools {
			break
		}
	}
	if math.IsInf(least, 1) {
		return nil, fmt.Errorf("%w: memory does not come to rest", errProgram)
	}
	r[heap] = least
	r[mapped], err = at.mapped()
	return r, err
}

// mapped is a reading that is not a metric: resident memory of the daemon that is not its own, from files and shared
// memory.
const mapped = "mapped"

func (s *site) mapped() (sum float64, err error) {
	for _, pid := range s.Children(s.process().Pid()) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			return 0, err
		}
		for _, part := range []string{"RssFile", "RssShmem"} {
			n, _ := procfs.Bytes(string(b), part)
			sum += float64(n)
		}
	}
	return sum, nil
}

// series returns a function that returns the value of one series.
func series(name string) func(daemon.Metrics) float64 {
	return func(r daemon.Metrics) float64 { return r[name] }
}

// reserved returns what the pool has taken from devices, in use or not. It is bounded by its limit and kept for a
// while. It is heap for the soft device and shared memory for shm, and a gateway's shares of the two change.
func reserved(r daemon.Metrics) float64 { return r[`smcgw_registered_memory_bytes{kind="reserved"}`] }

// nothing is what most readings may have besides: 0.
func nothing(daemon.Metrics) float64 { return 0 }

// tolerance is how much more of something a gateway may have at the end: more, plus what besides allows.
type tolerance struct {
	what    string
	more    float64
	of      func(daemon.Metrics) float64
	besides func(daemon.Metrics) float64
}

// tolerances has the tolerances. A cache, a warm queue pair or one more batch of the legs of each family that are
// made ahead of need is no leak; one thing more per connection is, since a soak makes thousands.
var tolerances = []tolerance{
	{"goroutines", 24, series("go_goroutines"), nothing},
	{"threads", 12, series("go_threads"), nothing},
	{"descriptors", 24 + 2*process.LegBatch, series("process_open_fds"), nothing},
	{"bytes of heap", 16 << 20, series("go_memstats_heap_alloc_bytes"), reserved},
	{"bytes of stacks", 4 << 20, series("go_memstats_stack_inuse_bytes"), nothing},
	{"bytes of files and shared memory", 32 << 20, series(mapped), reserved},
	// The runtime gives memory back slowly, so this one is coarse; those above are not.
	{"bytes resident", 256 << 20, series("process_resident_memory_bytes"), reserved},
	{"bytes of the pool in use", 1 << 20, series(`smcgw_registered_memory_bytes{kind="used"}`), nothing},
	{"entries of dgrams", 256, series(`smcgw_ebpf_map_entries{map="dgrams"}`), nothing},
	{"entries of own", 16, series(`smcgw_ebpf_map_entries{map="own"}`), nothing},
	{"entries of peers", 64, series(`smcgw_ebpf_map_entries{map="peers"}`), nothing},
	{"entries of services", 64, series(`smcgw_ebpf_map_entries{map="services"}`), nothing},
}

// compare reports what has grown.
func (s *soak) compare(before, after map[*site]daemon.Metrics) {
	for _, at := range s.capable {
		b, a := before[at], after[at]
		if b == nil || a == nil {
			continue // reported
		}
		var all []string
		for _, t := range tolerances {
			now, then := t.of(a), t.of(b)
			all = append(all, fmt.Sprintf("%s %s > %s", t.what, short(then), short(now)))
			if now > then+t.more+t.besides(a) {
				s.ledger.fail(s.ledger.start, "gateway of "+at.Name+" has grown",
					fmt.Sprintf("%s: %s, %s after the warm-up", t.what, short(now), short(then)))
			}
		}
		s.ledger.say("%s: %s", at.Name, strings.Join(all, ", "))
	}
}

// short formats a number, in MiB if it is large.
func short(v float64) string {
	if math.Abs(v) >= 1<<20 {
		return fmt.Sprintf("%.1fMi", v/(1<<20))
	}
	return fmt.Sprintf("%.0f", v)
}

// never are the counters that must stay at zero, also in a gateway that is killed later.
var never = []string{"smcgw_stalls_total", "smcgw_panics_total"}

// goodbye checks a gateway's counters and ends it.
func (s *soak) goodbye(at *site) {
	s.innocent(at)
	at.down(s.ledger)
}

// innocent checks the counters that must stay at zero.
func (s *soak) innocent(at *site) {
	began := time.Now()
	r, err := s.metrics(at)
	if err != nil {
		s.broke(began, "metrics of "+at.Name, err)
		return
	}
	s.zero(at, r)
}

// zero reports those of the counters in never that are not zero.
func (s *soak) zero(at *site, r daemon.Metrics) {
	for _, name := range never {
		if n := r.Sum(name); n > 0 {
			s.ledger.fail(s.ledger.start, fmt.Sprintf("gateway of %s counts %s %.0f", at.Name, name, n), "")
		}
	}
}
