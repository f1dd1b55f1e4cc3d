package bench

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/bench/load"
	"github.com/smcgw/smcgw/lab/testnet"
)

// loads is two hosts, a load server on the second, and what the first runs.
type loads struct {
	tb     testing.TB
	net    *testnet.Network
	h1, h2 *testnet.Host
	a, b   netip.Addr // of the hosts
	mtu    int        // of the link
}

// overCable is two hosts connected by a veth pair and nothing else.
func overCable(tb testing.TB, mtu int) *loads {
	testnet.Require(tb, "root", "bpf")
	n := testnet.Start(tb, testnet.Config{Hosts: []string{"h1", "h2"}})
	l := &loads{tb: tb, net: n, h1: n.Host("h1"), h2: n.Host("h2"), mtu: mtu}
	var err error
	l.a, l.b, err = n.Cable(l.h1, l.h2, mtu)
	require.NoError(tb, err)
	l.serve()
	return l
}

// overSwitch is two hosts at the switch of a test network.
func overSwitch(tb testing.TB, mtu int) *loads {
	testnet.Require(tb, "root", "bpf", "tc")
	n := testnet.Start(tb, testnet.Config{Hosts: []string{"h1", "h2"}, MTU: mtu})
	l := &loads{tb: tb, net: n, h1: n.Host("h1"), h2: n.Host("h2"), mtu: mtu}
	l.a, l.b = l.h1.Addr4, l.h2.Addr4
	l.serve()
	return l
}

// command prepares this program as a load program on a host.
func command(ctx context.Context, h *testnet.Host, args ...string) *testnet.Cmd {
	cmd := h.Command(ctx, "nice", append([]string{"-n", "-11", os.Args[0], load.Program}, args...)...)
	cmd.Env = append(os.Environ(), apps.Variable+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

func (l *loads) serve() {
	p, err := l.h2.StartCmd(command(context.Background(), l.h2, "serve", l.b.String()))
	require.NoError(l.tb, err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(l.tb, p.WaitOutput(ctx, "serving"))
}

// run does a job and fails the test if it fails.
func (l *loads) run(j load.Job) load.Result {
	l.tb.Helper()
	r, err := l.try(j)
	require.NoError(l.tb, err)
	return r
}

func (l *loads) try(j load.Job) (r load.Result, err error) {
	j.Local, j.Server = l.a, l.b
	if j.MTU == 0 {
		j.MTU = pathMTU(l.mtu)
	}
	text, err := json.Marshal(&j)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := command(ctx, l.h1, "run", string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, err
	}
	if r.Error != "" {
		return r, &jobError{j, r.Error}
	}
	return r, nil
}

type jobError struct {
	job  load.Job
	text string
}

func (e *jobError) Error() string { return e.job.Kind + " " + e.job.Op + ": " + e.text }

// pathMTU is what a soft device makes of a link's MTU.
func pathMTU(mtu int) int {
	if mtu >= 4096+80 {
		return 4096
	}
	return 1024
}

// profileTo is the profile of a job, if SMCGW_PPROF names a directory.
func profileTo(name string) string {
	dir := os.Getenv("SMCGW_PPROF")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// series is what one way to do something has measured, a value a round.
type series []float64

func (s series) median() float64 {
	v := slices.Sorted(slices.Values(s))
	return v[len(v)/2]
}

// over divides round by round: what disturbed a round disturbed both.
func (s series) over(o series) series {
	q := make(series, len(s))
	for i := range s {
		q[i] = s[i] / o[i]
	}
	return q
}

func containsWord(text, word string) bool { return slices.Contains(strings.Fields(text), word) }
