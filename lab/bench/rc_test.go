package bench

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// flow is a stream of a kind for so many seconds, and how many bytes arrived.
type flow func(ctx context.Context, seconds int) (bytes float64, err error)

// A soft stream and one of the kernel's TCP leave each other a fair part of a bottleneck, whichever
// was there first. The bounds are generous: two streams of TCP are not always closer.
func TestSoftBesideTCP(t *testing.T) {
	testnet.Require(t, "root", "bpf", "tc", "iperf3")
	n := testnet.Start(t, testnet.Config{Hosts: []string{"h1", "h2"}, MTU: 1500})
	h1, h2 := n.Host("h1"), n.Host("h2")
	hurry := []string{"nice", "-n", "-11"} // what has no processor does not fill the line
	h1.Through(hurry...)
	h2.Through(hurry...)
	// A drop-tail queue whose burst is below two packets: trains and super-packets of TCP are cut
	// before, and each packet has its own luck.
	const line = 200e6
	_, err := h1.Run(t.Context(), "tc", "qdisc", "replace", "dev", h1.Device, "root", "tbf",
		"rate", "200mbit", "burst", "3000", "limit", "100000")
	require.NoError(t, err)
	p, err := h2.StartCmd(h2.AppCommand(context.Background(), rcProgram, "serve", h2.Addr4.String()))
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(t.Context(), rcServing))
	_, err = h2.IPerf3Server(iperfPort)
	require.NoError(t, err)

	c := cable{client: &host{Host: h1}, local: h1.Addr4, addr: h2.Addr4, mtu: 1500}
	soft := func(ctx context.Context, seconds int) (float64, error) {
		bytes, _, err := c.bareStream(ctx, time.Duration(seconds)*time.Second)
		return bytes, err
	}
	tcp := func(ctx context.Context, seconds int) (float64, error) {
		cmd := h1.Command(ctx, "nice", "-n", "-11", "iperf3", "-J", "-c", h2.Addr4.String(), "-p", fmt.Sprint(iperfPort), "-t", fmt.Sprint(seconds), "-C", "cubic")
		out, _ := cmd.Output() // what went wrong is in the JSON
		r, err := testnet.ParseIPerf3Rate(string(out))
		return float64(r.ReceivedBytes), err
	}
	for i, pair := range [][2]flow{{tcp, soft}, {soft, tcp}} {
		var x, y float64
		// A machine that is busy otherwise does not fill the line; then the streams share something
		// else.
		fair := func() bool { return x+y > line/4 && math.Min(x, y) > (x+y)/5 }
		for try := 0; try < 3 && !fair(); try++ {
			x, y = share(t, line, pair)
			t.Logf("%s: %.0f Mbit/s, then %.0f Mbit/s", []string{"TCP first", "soft first"}[i], x/1e6, y/1e6)
		}
		require.True(t, fair(), "%.0f Mbit/s, then %.0f Mbit/s", x/1e6, y/1e6)
	}
}

// share runs two streams through a bottleneck, the second begins a second later, and returns what
// each got of the line while both were there, in bits per second: the first no less than that,
// since it had at most the whole line while it was alone.
func share(t *testing.T, line float64, pair [2]flow) (first, second float64) {
	const both = 6
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var bytes [2]float64
	var errs [2]error
	var wg sync.WaitGroup
	for i, seconds := range []int{both + 1, both} {
		wg.Go(func() { bytes[i], errs[i] = pair[i](ctx, seconds) })
		if i == 0 {
			time.Sleep(time.Second)
		}
	}
	wg.Wait()
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	return (bytes[0]*8 - line) / both, bytes[1] * 8 / both
}

// What the soft device does alone, over both MTUs, and that the far side is there for the next.
func TestBareStream(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	n := testnet.Start(t, testnet.Config{Hosts: []string{"h1", "h2"}})
	h1, h2 := n.Host("h1"), n.Host("h2")
	local, addr, err := n.Cable(h1, h2, 9000)
	require.NoError(t, err)
	p, err := h2.StartCmd(h2.AppCommand(context.Background(), rcProgram, "serve", addr.String()))
	require.NoError(t, err)
	require.NoError(t, p.WaitOutput(t.Context(), rcServing))
	for _, mtu := range []int{1500, 9000} {
		c := cable{client: &host{Host: h1}, local: local, addr: addr, mtu: mtu}
		bytes, seconds, err := c.bareStream(t.Context(), 100*time.Millisecond)
		require.NoError(t, err)
		require.Greater(t, bytes, float64(rcSize))
		require.Greater(t, seconds, 0.1)
	}
}

func TestConnects(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	n := testnet.Start(t, testnet.Config{Hosts: []string{"h1", "h2"}})
	_, err := n.Host("h2").StartApp("serve", "-quiet", fmt.Sprintf("echo=0.0.0.0:%d", echoPort))
	require.NoError(t, err)
	h := &host{Host: n.Host("h1")}
	w := way{client: h, to: func(service uint16) netip.AddrPort { return n.Host("h2").AddrPort4(service) }}
	values, err := connects(20, 0).do(t.Context(), w, 0)
	require.NoError(t, err)
	require.Len(t, values, 1)
	require.Positive(t, values[0])
	w.to = func(uint16) netip.AddrPort { return n.Host("h2").AddrPort4(1) }
	_, err = connects(20, 0).do(t.Context(), w, 0)
	require.ErrorContains(t, err, "connection refused")
	for _, wrong := range [][]string{{"x"}, {"10.0.0.1:1", "0", "0s"}, {"10.0.0.1:1", "1", "long"}, {"nobody", "1", "0s"}} {
		_, err := connectAll(wrong)
		require.Error(t, err, wrong)
	}
}
