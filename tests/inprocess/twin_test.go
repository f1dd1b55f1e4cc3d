package inprocess

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/tests/inprocess/world"
)

const (
	twinCalls    = 120              // per random program
	twinTime     = 60 * time.Second // for one run of a program
	twinPrograms = 32               // unless a time is given
)

// A twin is a random program of calls on connections; see twin.c.
type twin struct {
	seed      uint64
	processes int
	begin     string // warm or cold
	calls     []int  // the calls that are made
}

func (p twin) args() []string {
	list := make([]string, len(p.calls))
	for i, c := range p.calls {
		list[i] = strconv.Itoa(c)
	}
	return []string{strconv.FormatUint(p.seed, 10), strconv.Itoa(p.processes), p.begin, strings.Join(list, ",")}
}

// run returns what the program prints in w, or natively if w is nil.
func (p twin) run(w *world.World, program string) string {
	var env []string
	if w != nil {
		env = []string{"TWIN_PROMOTED=1"}
	}
	said, err := run(w, twinTime, env, program, p.args()...)
	if err != nil {
		said += fmt.Sprintln(err)
	}
	return said
}

// edge matches what the program prints of an edge-triggered registration: its name, and its events.
var edge = regexp.MustCompile(` ~([0-9a-f]+):([0-9a-f]+)`)

// likewise tells whether got is as good as want: it may have more edges, and more readiness in those that want has.
func likewise(got, want string) bool {
	got, want = strings.TrimSpace(got), strings.TrimSpace(want)
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	if edge.ReplaceAllString(got, "") != edge.ReplaceAllString(want, "") {
		return false
	}
	const ready = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDNORM | unix.EPOLLWRNORM | unix.EPOLLRDHUP | unix.EPOLLHUP
	for i := range a {
		has := map[string]uint64{}
		for _, m := range edge.FindAllStringSubmatch(b[i], -1) {
			if events, _ := strconv.ParseUint(m[2], 16, 32); events != 0 {
				has[m[1]] = events
			}
		}
		for _, m := range edge.FindAllStringSubmatch(a[i], -1) {
			events, _ := strconv.ParseUint(m[2], 16, 32)
			if had := has[m[1]]; had&^events != 0 || events&^had&^ready != 0 {
				return false
			}
			delete(has, m[1])
		}
		if len(has) > 0 {
			return false
		}
	}
	return true
}

// differs returns what the program prints in w and natively, and whether the two differ. Where an answer of the kernel
// depends on how busy the machine is, several are right, so a difference counts only if it persists.
func (p twin) differs(w *world.World, program string) (got, want string, differs bool) {
	var natively []string
	for range 3 {
		got = p.run(w, program)
		as := func(want string) bool { return likewise(got, want) }
		for i := 0; i < 3 && !slices.ContainsFunc(natively, as); i++ {
			natively = append(natively, p.run(nil, program))
		}
		if slices.ContainsFunc(natively, as) {
			return got, got, false
		}
	}
	return got, natively[len(natively)-1], true
}

// shrink leaves out calls as long as a difference remains, and returns the smallest program and what it prints.
func (p twin) shrink(w *world.World, program, got, want string) (twin, string, string) {
	for n := len(p.calls) / 2; n > 0; n /= 2 {
		for at := len(p.calls) - n; at >= 0; at -= n {
			q := p
			q.calls = slices.Delete(slices.Clone(p.calls), at, at+n)
			if g, n, differs := q.differs(w, program); differs {
				p, got, want = q, g, n
			}
		}
	}
	return p, got, want
}

// TestTwins runs programs of random calls natively and with the library, and checks that each call reports the same.
// Half of the programs begin with promoted connections, the others are promoted while they run. They are always the
// same 32, or random ones for as long as SMCGW_TWINS says, such as 10m; about one in a hundred of those still differs.
func TestTwins(t *testing.T) {
	t.Parallel()
	program := shared.For(t).Program("twin")
	worlds := map[string]*world.World{
		"warm": newWorld(t, broker.Thresholds{Calls: 1}),
		"cold": newWorld(t, broker.Thresholds{Calls: 2}),
	}
	var (
		seed uint64
		all  sync.WaitGroup
		mu   sync.Mutex // guards what follows
		runs int
		over = func() bool { return runs == twinPrograms }
	)
	if length := lengthOf(t, "SMCGW_TWINS", 0); length > 0 {
		until := time.Now().Add(length)
		seed, over = matrix.Seed(t), func() bool { return time.Now().After(until) }
	}
	for range 4 {
		all.Go(func() {
			for !t.Failed() {
				mu.Lock()
				if over() {
					mu.Unlock()
					return
				}
				runs++
				p := twin{seed: seed + uint64(runs), processes: 1 + runs%2, begin: []string{"warm", "cold"}[runs/2%2]}
				mu.Unlock()
				for i := range twinCalls {
					p.calls = append(p.calls, i)
				}
				w := worlds[p.begin]
				got, want, differs := p.differs(w, program)
				if !differs {
					continue
				}
				p, got, want = p.shrink(w, program, got, want)
				t.Errorf("twin %s\nnatively:\n%s\nwith the library:\n%s", strings.Join(p.args(), " "), want, got)
			}
		})
	}
	all.Wait()
	t.Log(runs, "programs")
	for _, w := range worlds {
		require.NotZero(t, w.Moved())
	}
}
