package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// handoffs counts the changes of goroutine in a gateway, by kind and by the function responsible: posts to a shard,
// goroutines that are started, goroutines that are woken.
type handoffs map[string]int

// mostHandoffs bounds the hand-offs between the offered SYN and the first byte after CONFIRM, for a connection to a
// peer whose gateway is known, on gateways of one shard (docs/design/shards.md "Hand-offs").
const mostHandoffs = 1

// TestHandoffs counts the hand-offs of a beginning connection at both hosts, from traces of the Go runtime.
func TestHandoffs(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	files := map[report.Side]string{report.SideClient: filepath.Join(w.dir, "client.trace"), report.SideServer: filepath.Join(w.dir, "server.trace")}
	for side, h := range map[report.Side]*testnet.Host{report.SideClient: w.h1, report.SideServer: w.h2} {
		s := ownSettings()
		s.Extra = "shards: 1\n"
		s.Env = []string{fmt.Sprintf("SMCGW_DEBUG_TRACE=%d:%s", echoPort, files[side])}
		w.upDetached(h, s)
	}
	w.begins(t) // the gateways get to know each other, and the traces begin
	const connections = 15
	begun := make([]window, connections)
	for i := range begun {
		time.Sleep(50 * time.Millisecond) // for what the connection before has left to do
		begun[i] = w.begins(t)
	}
	w.carriedApp(t, w.h1, "ping", "-count", "5", "-to", w.h2.AddrPort4(echoPort).String()) // it ends the traces
	for side, file := range files {
		events := traced(t, file)
		counts := make([]handoffs, connections)
		for i, b := range begun {
			counts[i] = b.handoffs(events)
		}
		slices.SortFunc(counts, func(a, b handoffs) int { return cmp.Compare(a.sum(), b.sum()) })
		middle := counts[connections/2]
		t.Logf("%s: %d hand-offs (%d to %d)\n%s", side, middle.sum(), counts[0].sum(), counts[connections-1].sum(), middle)
		require.LessOrEqual(t, middle.sum(), mostHandoffs)
		require.True(t, slices.ContainsFunc(events, func(e traceEvent) bool {
			return e.posts() && e.onShard() && slices.ContainsFunc(begun, func(b window) bool { return b.has(e) })
		}), "the trace shows what a shard posts to itself")
	}
}

func (h handoffs) sum() (n int) {
	for _, k := range h {
		n += k
	}
	return n
}

func (h handoffs) String() string {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(&b, "%4d %s\n", h[kind], kind)
	}
	return b.String()
}

// window is the time in which a connection began, on the monotonic clock.
type window struct{ from, to int64 }

// begins begins a connection and has it carry its first byte.
func (w *world) begins(t *testing.T) (b window) {
	t.Helper()
	b.from = monotonic(t)
	p, err := newPair(w.h1, w.h2, w.h2.AddrPort4(ownPort))
	require.NoError(t, err)
	defer p.close()
	_, err = p.c.Write([]byte{1})
	require.NoError(t, err)
	_, err = p.s.Read(make([]byte, 1))
	require.NoError(t, err)
	b.to = monotonic(t)
	return b
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

// traceEvent is an event from a trace of the Go runtime.
type traceEvent struct {
	at    int64 // on the monotonic clock
	what  string
	stack []string // functions, innermost first
}

// traced reads a trace of the Go runtime with the go tool.
func traced(t *testing.T, file string) (list []traceEvent) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "tool", "trace", "-d=parsed", file).Output()
	require.NoError(t, err)
	begin := regexp.MustCompile(`^M=\S+ P=\S+ G=(\S+) (\S+) Time=(\d+) (.*)`)
	inStack := false
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch m := begin.FindStringSubmatch(line); {
		case m != nil:
			at, err := strconv.ParseInt(m[3], 10, 64)
			require.NoError(t, err)
			list = append(list, traceEvent{at: at, what: m[2] + " by " + m[1] + " " + m[4]})
			inStack = false
		case line == "Stack=":
			inStack = true
		case line == "TransitionStack=":
			inStack = false
		case inStack && strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "\t\t"):
			function, _, _ := strings.Cut(strings.TrimSpace(line), " @ ")
			e := &list[len(list)-1]
			e.stack = append(e.stack, function)
		}
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, list)
	return list
}

// handoffs counts the hand-offs in the window. What the runtime does for itself does not count, nor does a timer or a
// descriptor that wakes a goroutine, since nothing hands over then. What a shard posts to itself stays on its thread.
func (b window) handoffs(events []traceEvent) handoffs {
	h := handoffs{}
	for _, e := range events {
		by := e.owner()
		switch {
		case !b.has(e) || by == "":
		case e.posts():
			if !e.onShard() {
				h["post  "+by]++
			}
		case strings.Contains(e.what, "NotExist->Runnable"):
			h["start "+by]++
		case strings.Contains(e.what, "Waiting->Runnable"):
			if !slices.ContainsFunc(e.stack, shardPost.MatchString) { // the post counts instead
				h["wake  "+by]++
			}
		}
	}
	return h
}

// has tells whether an event is in the window.
func (b window) has(e traceEvent) bool { return b.from <= e.at && e.at <= b.to }

// posts tells whether the event is a post to a shard.
func (e traceEvent) posts() bool {
	return strings.Contains(e.what, `Category="shard" Message="post"`)
}

// onShard tells whether a shard's thread caused the event.
func (e traceEvent) onShard() bool {
	return slices.ContainsFunc(e.stack, shardRun.MatchString)
}

var (
	shardRun  = regexp.MustCompile(`\.\(\*[sS]hard\)\.run$`)
	shardPost = regexp.MustCompile(`\.\(\*[sS]hard\)\.[pP]ost$`)
	// between matches functions between an event and the function that is responsible for it.
	between = regexp.MustCompile(`\(\*[sS]hard\)\.|\(\*[fF]low\)\.post$|gvisor/pkg/(sync|waiter|sleep)[./]|^(runtime|sync|time)\.`)
)

// owner returns the function of the gateway, or of gVisor, that is responsible for an event, or "".
func (e traceEvent) owner() string {
	for _, function := range e.stack {
		if between.MatchString(function) {
			continue
		}
		if strings.Contains(function, "smcgw/") || strings.HasPrefix(function, "gvisor.dev/") {
			return function[strings.LastIndex(function, "/")+1:]
		}
	}
	return ""
}
