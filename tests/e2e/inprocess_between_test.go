package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// betweenWorld is two hosts, each with a daemon, that promote connections between each other's programs.
type betweenWorld struct {
	*inProcessWorld
	gs       [2]*gw // of h1 and h2
	settings settings
}

// betweenRule makes streams be promoted between hosts.
const betweenRule = "  - { name: rings, match: { ports: [7001] }, action: accelerate, way: in-process }\n"

func newBetweenWorld(t *testing.T, s settings) *betweenWorld {
	t.Helper()
	w := &betweenWorld{inProcessWorld: newProgramsWorld(t)}
	w.apart = true
	s.Policy, s.InProcess = s.Policy+betweenRule, ", between_hosts: on"
	w.settings = s
	w.gs = [2]*gw{w.up(w.h1, s), w.up(w.h2, s)}
	return w
}

// promoted waits until both ends are in rings and bytes have moved there.
func (w *betweenWorld) promoted() (ends [2]report.ConnInfo) {
	w.t.Helper()
	for i, g := range w.gs {
		g.eventually("promoted", 3*slack, func() bool {
			list := g.inProcess()
			if len(list) == 1 {
				ends[i] = list[0]
			}
			return len(list) == 1 && list[0].InProcess.TxRing > 0 && list[0].InProcess.RxRing > 0
		})
	}
	return ends
}

// TestBetweenHosts checks that a stream between programs on two hosts goes by rings that the soft device carries.
func TestBetweenHosts(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	for _, e := range w.promoted() {
		require.Equal(t, report.CarrierSoft, e.Carrier)
		require.Equal(t, "stream", e.Program.Name)
	}
	f.ends()
}

// TestBetweenHostsFirewall checks that a firewall rule added later stops the bytes in rings, too, although it lets the carrier pass; that the
// connection returns to the rings once it is removed; and that a destroyed socket ends.
func TestBetweenHostsFirewall(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.promoted()
	f.stopsByRule(w.gs[1])
	w.gs[1].eventually("the reason", slack, func() bool { // of the end that leaves first
		return w.gs[0].status().InProcess.Native["path"]+w.gs[1].status().InProcess.Native["path"] != 0
	})
	w.promoted()
	f.destroyed()
}

// TestBetweenHostsMemory checks that rings are small where memory is short, which a server's gateway tells the client's.
func TestBetweenHostsMemory(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	w.gs[0].stop()
	small := w.settings
	small.Memory = "16MiB"
	w.gs[0] = w.up(w.h1, small)
	for _, order := range []uint32{inprocess.OrderMax, inprocess.OrderMin} {
		f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.promoted()
		for _, g := range w.gs {
			require.Equal(t, inprocess.PairSize(order), g.stats().InProcess.MemoryBytes)
		}
		f.ends()
		f.kill()
		for _, g := range w.gs {
			g.eventually("gone", 3*slack, func() bool { return len(g.inProcess()) == 0 && g.stats().InProcess.MemoryBytes == 0 })
		}
	}
}

// TestBetweenHostsKeys checks that operators see that a connection is native because the gateways have no key in common,
// also while the peer is remembered for that.
func TestBetweenHostsKeys(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	for i, h := range []*testnet.Host{w.h1, w.h2} {
		s := w.settings
		s.Extra += w.keys(h, []string{keyOne, keyTwo}[i])
		w.gs[i].stop()
		w.gs[i] = w.up(h, s)
	}
	told := func() bool {
		return slices.ContainsFunc(w.gs[1].conns("--all"), func(c report.ConnInfo) bool {
			return c.Reason == "auth_failed" && c.DecidedBy == report.DecidedRemote
		})
	}
	for range 2 {
		f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
		w.gs[1].eventually("the reason", slack, told)
		f.kill()
		w.gs[1].eventually("gone", slack, func() bool { return !told() })
	}
}

// asks starts a server on h1, and a client on h2 that asks it until SIGTERM and some number of times more, and then does as its
// verb says.
func (w *betweenWorld) asks(ctx context.Context, verb string, times int) (server, client *testnet.Proc) {
	w.t.Helper()
	program, port := filepath.Join(w.dir, "rest"), fmt.Sprint(transferPort)
	server = w.start(w.h1, program, "serve", port)
	require.NoError(w.t, server.WaitOutput(ctx, "serving"))
	client = w.start(w.h2, program, verb, w.h1.Addr4.String(), port, fmt.Sprint(times))
	w.t.Cleanup(func() { _, _ = client.Kill(), server.Kill() })
	require.NoError(w.t, client.WaitOutput(ctx, "asking\n"))
	return server, client
}

// asksBothWays has a client ask a server, natively and promoted, and then lets it do as its verb says.
func (w *betweenWorld) asksBothWays(verb string, then func(ctx context.Context, server, client *testnet.Proc)) {
	w.t.Helper()
	for _, library := range []bool{false, true} {
		w.library = library
		ctx, cancel := context.WithTimeout(w.t.Context(), slowed(time.Minute))
		defer cancel()
		server, client := w.asks(ctx, verb, 300)
		if library {
			w.promoted()
		}
		require.NoError(w.t, client.Signal(syscall.SIGTERM))
		then(ctx, server, client)
		require.NoError(w.t, server.Kill())
		_ = server.Wait()
	}
}

// TestBetweenHostsAtRest checks that a sender knows, as natively, that its peer has everything, and that the death of a
// peer that has read everything is the end of the stream.
func TestBetweenHostsAtRest(t *testing.T) {
	t.Parallel()
	newBetweenWorld(t, settings{Carriers: "soft"}).asksBothWays("ask", func(ctx context.Context, server, client *testnet.Proc) {
		require.NoError(t, client.WaitOutput(ctx, "owes 0\n"))
		require.NoError(t, server.Kill())
		require.NoError(t, client.WaitOutput(ctx, "then the end\n"))
	})
}

// TestBetweenHostsLeaves checks that all comes that a program wrote before it was killed, although its ring was full and
// its kernel not done.
func TestBetweenHostsLeaves(t *testing.T) {
	t.Parallel()
	newBetweenWorld(t, settings{Carriers: "soft"}).asksBothWays("leave", func(ctx context.Context, server, client *testnet.Proc) {
		require.NoError(t, client.WaitOutput(ctx, "gave"))
		_, gave, _ := strings.Cut(client.Output(), "gave ")
		gave, _, _ = strings.Cut(gave, "\n")
		require.NoError(t, server.WaitOutput(ctx, "got"))
		require.Contains(t, server.Output(), "got "+gave+", then the end\n")
	})
}

// TestBetweenHostsGatewayStops checks that programs that ask and answer go on while a gateway stands still.
func TestBetweenHostsGatewayStops(t *testing.T) {
	t.Parallel()
	for i, side := range []string{"server", "client"} {
		t.Run(side, func(t *testing.T) {
			w := newBetweenWorld(t, settings{Carriers: "soft"})
			ctx, cancel := context.WithTimeout(t.Context(), slowed(time.Minute))
			defer cancel()
			_, client := w.asks(ctx, "ask", 2000)
			w.promoted()
			defer w.gs[i].freeze()()
			require.NoError(t, client.Signal(syscall.SIGTERM))
			require.NoError(t, client.WaitOutput(ctx, "owes 0\n"))
		})
		t.Run(side+" while the client only writes", func(t *testing.T) {
			w := newBetweenWorld(t, settings{Carriers: "soft"})
			ctx, cancel := context.WithTimeout(t.Context(), slowed(time.Minute))
			defer cancel()
			server, client := w.asks(ctx, "tell", 300)
			w.promoted()
			require.NoError(t, client.Signal(syscall.SIGTERM))
			require.NoError(t, client.WaitOutput(ctx, "slowest answer"))
			defer w.gs[i].freeze()()
			require.NoError(t, server.WaitOutput(ctx, "told\n"))
		})
		t.Run(side+" after the client's end", func(t *testing.T) {
			w := newBetweenWorld(t, settings{Carriers: "soft"})
			ctx, cancel := context.WithTimeout(t.Context(), slowed(time.Minute))
			defer cancel()
			server, client := w.asks(ctx, "end", 300)
			w.promoted()
			require.NoError(t, client.Signal(syscall.SIGTERM))
			require.NoError(t, server.WaitOutput(ctx, "no more questions\n"))
			defer w.gs[i].freeze()()
			require.NoError(t, client.WaitOutput(ctx, "answered\n"))
		})
	}
}

// freeze stops the processes of the gateway until resume is called.
func (g *gw) freeze() (resume func()) {
	pids := g.processes()
	for _, pid := range pids {
		g.signal(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range pids {
			g.signal(pid, syscall.SIGCONT)
		}
	}
}

// native waits until no end is in rings.
func (w *betweenWorld) native() {
	w.t.Helper()
	for _, g := range w.gs {
		g.eventually("by the kernel", slack, func() bool { return len(g.inProcess()) == 0 })
	}
}

// wentBack waits until a return to the kernel is counted for a reason. The end may have asked again since.
func (g *gw) wentBack(reason string) {
	g.w.t.Helper()
	g.eventually("back for "+reason, 3*slack, func() bool { return g.stats().InProcess.Native[reason] > 0 })
}

// TestBetweenHostsSwitch checks that off, on either host, moves a stream to the kernel at an exact byte, and on moves
// it back to rings.
func TestBetweenHostsSwitch(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	for _, g := range w.gs {
		w.promoted()
		g.says("off")
		w.native()
		g.wentBack("off")
		f.goesOn(5 * time.Second)
		g.says("on")
		f.goesOn(5 * time.Second)
	}
	w.promoted()
}

// TestBetweenHostsSwitchOneWay checks the same for a stream whose receiver sends nothing, so that one direction was never
// opened.
func TestBetweenHostsSwitchOneWay(t *testing.T) {
	t.Parallel()
	testnet.Require(t, "iperf3")
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	at := fmt.Sprint(transferPort)
	server := w.start(w.h1, "iperf3", "-s", "-1", "-p", at, "--forceflush")
	ctx, cancel := context.WithTimeout(t.Context(), slowed(3*slack))
	defer cancel()
	require.NoError(t, server.WaitOutput(ctx, "listening"))
	client := w.start(w.h2, "iperf3", "-c", w.h1.Addr4.String(), "-p", at, "-t", "300")
	defer func() { _, _ = client.Kill(), server.Kill() }()
	promoted := func() {
		t.Helper()
		w.gs[1].eventually("promoted", 3*slack, func() bool {
			return slices.ContainsFunc(w.gs[1].inProcess(), func(c report.ConnInfo) bool { return c.InProcess.TxRing > 1<<20 })
		})
	}
	for _, g := range w.gs {
		promoted()
		g.says("off")
		w.native()
		g.says("on")
	}
	promoted()
}

// TestBetweenHostsDies checks that, whatever dies, a stream goes on or ends as the kernel would have ended it.
func TestBetweenHostsDies(t *testing.T) {
	t.Parallel()
	kill := func(g *gw) {
		for _, pid := range g.processes() {
			g.signal(pid, syscall.SIGKILL)
		}
	}
	for _, of := range []struct {
		name string
		then func(w *betweenWorld, f *flow)
		goes bool
		why  string // the reason for going back, on the sender's host
	}{
		{"gateway of the sender", func(w *betweenWorld, _ *flow) { kill(w.gs[1]) }, true, ""},
		{"gateway of the receiver", func(w *betweenWorld, _ *flow) { kill(w.gs[0]) }, true, "wire_reset"},
		{"carrier", func(w *betweenWorld, _ *flow) {
			require.NoError(w.t, w.h1.NFT("table ip t { chain in { type filter hook input priority 0; udp dport 4791 drop; }; }\n"))
		}, true, "carrier_unreachable"},
		{"link", func(w *betweenWorld, _ *flow) { // for longer than carriers wait
			require.NoError(w.t, w.h1.SetLink(false))
			time.Sleep(4 * time.Second)
			require.NoError(w.t, w.h1.SetLink(true))
		}, true, "carrier_unreachable"},
		{"upgrade", func(w *betweenWorld, _ *flow) { w.gs[0] = w.gs[0].upgrade() }, true, "drained"},
		{"sender", func(_ *betweenWorld, f *flow) { _ = f.client.Kill() }, false, ""},
		{"receiver", func(_ *betweenWorld, f *flow) { _ = f.server.Kill() }, false, ""},
		{"socket", func(w *betweenWorld, _ *flow) {
			_, err := w.h1.Run(w.t.Context(), "ss", "-K", "sport", "=", fmt.Sprint(transferPort))
			require.NoError(w.t, err)
		}, false, ""},
	} {
		t.Run(of.name, func(t *testing.T) {
			w := newBetweenWorld(t, settings{Carriers: "soft"})
			f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
			w.promoted()
			f.goesOn(5 * time.Second)
			of.then(w, f)
			patience := 5 * time.Second
			if of.name == "carrier" || of.name == "link" { // the device probes a silent peer as for steered connections
				patience = 10 * time.Second
			}
			if of.goes {
				for range 5 {
					f.goesOn(patience)
				}
				if of.why != "" {
					w.gs[1].wentBack(of.why)
				}
				if of.name == "link" {
					w.promoted()
				}
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), slowed(3*slack))
			defer cancel()
			switch of.name {
			case "sender":
				require.Eventually(t, func() bool { // a reset, if it left answers unread
					out := f.server.Output()
					return strings.Contains(out, "whole") || strings.Contains(out, "reset after")
				}, slowed(3*slack), 10*time.Millisecond, "the end")
			case "receiver":
				require.NoError(t, f.client.WaitOutput(ctx, "error"))
			default:
				require.NoError(t, f.server.WaitOutput(ctx, "reset after"))
				require.NoError(t, f.client.WaitOutput(ctx, "error"))
			}
		})
	}
}

// TestBetweenHostsCarrierComes checks that a connection which no carrier could be proved for is promoted soon after one
// can be.
func TestBetweenHostsCarrierComes(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft"})
	require.NoError(t, w.h1.NFT("table ip t { chain in { type filter hook input priority 0; udp dport 4791 drop; }; }\n"))
	f := w.stream(w.h1, w.h2, w.h1.Addr4.String(), transferPort, endless)
	w.gs[1].wentBack("carrier_unreachable")
	f.goesOn(5 * time.Second)
	require.NoError(t, w.h1.NFT("delete table ip t\n"))
	w.promoted()
}

// TestBenchPeerInProcess checks that bench --peer compares connections whose bytes go from ring to ring with the
// others between the same gateways, and reports why if they do not.
func TestBenchPeerInProcess(t *testing.T) {
	t.Parallel()
	w := newBetweenWorld(t, settings{Carriers: "soft", Handshake: "10s"})
	token := w.serveBench(w.h1)
	const way, up = "in-process soft", "upload, 1 stream"
	r := w.bench(w.h2, w.h1.Addr4.String(), token, "--duration", "500ms")
	for _, work := range []string{up, "download, 1 stream", "ping-pong 64 B, p50", "ping-pong 64 B beside a stream, p99", "processor time, upload"} {
		for _, v := range []string{way, "soft"} {
			_, ok := r.Ratio(work, v, comparison.TCP)
			require.True(t, ok, "%s by %s: %v", work, v, notes(r, v))
		}
	}
	require.Equal(t, "connections that are short or idle stay native", seriesOf(t, r, "connect, request, close", way).Note)

	w.gs[0].turn(settings{Carriers: "soft", Handshake: "10s", Policy: betweenRule}, report.ModeEnforce) // without between_hosts, which is off by default
	r = w.bench(w.h2, w.h1.Addr4.String(), token, "--rounds", "1")
	s := seriesOf(t, r, up, way)
	require.Empty(t, s.Values)
	require.Equal(t, "fallback: no_peer", s.Note)
	_, ok := r.Ratio(up, "soft", comparison.TCP)
	require.True(t, ok, notes(r, "soft"))
}
