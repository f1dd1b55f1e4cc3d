package monitoring

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/daemon"
	"github.com/smcgw/smcgw/lab/testnet"
)

// patience bounds every wait for something that must happen, on however slow a machine.
const patience = 2 * time.Minute

// Ports of the web servers, in a rule and in none, and of what watches the gateways.
const (
	webPort        = 8080
	plainPort      = 8081
	metricsPort    = 9469
	prometheusPort = 9090
)

// world is three hosts: h1 and h2 run gateways that serve metrics, h3 is plain. Until the test ends, programs on h1
// fetch from the others. What watches the gateways runs on h1.
type world struct {
	h1, h2, h3 *testnet.Host
	g1         *admin.Client
	program    string // smcgw
	dir        string // of the sockets
	metrics    []string
}

// newWorld starts all of it.
func newWorld(t *testing.T) *world {
	t.Helper()
	testnet.Require(t, "root", "bpf")
	n := testnet.Start(t, testnet.Config{})
	w := &world{h1: n.Host("h1"), h2: n.Host("h2"), h3: n.Host("h3")}
	var servers sync.WaitGroup
	t.Cleanup(servers.Wait)
	for _, h := range []*testnet.Host{w.h2, w.h3} {
		for _, port := range []uint16{webPort, plainPort} {
			ln, err := h.Listen("tcp", h.AddrPort4(port).String())
			require.NoError(t, err)
			srv := apps.NewWeb()
			t.Cleanup(func() { _ = srv.Close() })
			servers.Go(func() { _ = srv.Serve(ln) })
		}
	}
	dir, err := os.MkdirTemp("", "smcgw-mon-") //nolint:usetesting // short: there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	w.program, w.dir = testnet.Program(t), dir
	w.g1 = w.gateway(t, dir, w.h1)
	w.gateway(t, dir, w.h2)
	w.load(t)
	return w
}

// gateway starts a gateway on a host. It serves metrics on loopback for h1, and to h1 elsewhere.
func (w *world) gateway(t *testing.T, dir string, h *testnet.Host) *admin.Client {
	t.Helper()
	metrics := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), metricsPort)
	if h != w.h1 {
		metrics = h.AddrPort4(metricsPort)
	}
	w.metrics = append(w.metrics, metrics.String())
	socket := filepath.Join(dir, h.Name+".sock")
	p, client, err := daemon.Start(t.Context(), h, daemon.Spec{
		Executable: w.program, File: filepath.Join(dir, h.Name+".yaml"), Socket: socket,
		Configuration: fmt.Sprintf(`schema: smcgw/v1
mode: enforce
admin: %s
devices: [eth0]
policy:
  - { name: web, match: { ports: [%d] }, action: accelerate }
  - { name: default, action: pass }
carriers: [shm]
shards: 1
shm_dir: %s/shm
state_dir: %s/%s.state
in_process: { socket: %s/%s.in-process.sock }
limits: { handshake_timeout: 10s, memory: 256MiB, stall_timeout: 20s } # a look every 5, for the fill of rings
metrics: { listen: %q }
`, socket, webPort, dir, dir, h.Name, dir, h.Name, metrics),
	})
	t.Cleanup(func() {
		if client != nil {
			client.Close()
		}
		if p == nil {
			return
		}
		if t.Failed() {
			t.Logf("gateway of %s:\n%s", h.Name, p.Output())
		}
		require.NoError(t, p.Stop(patience))
	})
	require.NoError(t, err)
	return client
}

// client returns an HTTP client on a host.
func client(h *testnet.Host, reuse bool) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: !reuse}, Timeout: patience}
}

// load makes programs on h1 fetch from the others, over one connection each for a while, and over a new connection
// each time.
func (w *world) load(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var programs sync.WaitGroup
	t.Cleanup(func() {
		stop()
		programs.Wait()
	})
	fetch := func(to *testnet.Host, port uint16, size int64, reuse bool) {
		c := client(w.h1, reuse)
		defer c.CloseIdleConnections()
		for i := 0; ctx.Err() == nil; i++ {
			get(ctx, c, fmt.Sprintf("http://%v/%d", to.AddrPort4(port), size))
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(20+i/4%12*20) * time.Millisecond): // sometimes more, sometimes less
			}
		}
	}
	programs.Go(func() { fetch(w.h2, webPort, 4<<20, true) })
	programs.Go(func() { fetch(w.h2, webPort, 1000, false) })
	programs.Go(func() { fetch(w.h3, webPort, 1000, false) })
	programs.Go(func() { fetch(w.h2, plainPort, 1000, false) })
}

// get fetches a URL. A failure means that the world ends, or is tried again.
func get(ctx context.Context, c *http.Client, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return
	}
	resp, err := c.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}
