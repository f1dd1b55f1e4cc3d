package monitoring

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/memhost"
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 2 * time.Minute

// Ports of the web servers: of a rule, and of none.
const (
	webPort   = 8080
	plainPort = 8081
)

// world is three hosts in memory: h1 and h2 run gateways that serve metrics and the status
// page on loopback addresses, h3 is plain. Programs of h1 fetch from the others until the
// test ends.
type world struct {
	g1, g2        *memhost.Gateway
	peer          string   // the address of h2
	metrics, page []string // of both gateways
}

// newWorld starts all of it.
func newWorld(t *testing.T) *world {
	t.Helper()
	n, err := memhost.NewNetwork(memhost.Config{})
	require.NoError(t, err)
	var servers sync.WaitGroup
	t.Cleanup(func() {
		require.NoError(t, n.Close())
		servers.Wait()
	})
	var hosts []*memhost.Host
	for i := range 3 {
		h, err := n.AddHost(fmt.Sprintf("h%d", i+1))
		require.NoError(t, err)
		hosts = append(hosts, h)
	}
	for _, h := range hosts[1:] {
		for _, port := range []uint16{webPort, plainPort} {
			v4, v6, err := h.Listen(port)
			require.NoError(t, err)
			srv := apps.NewWeb()
			t.Cleanup(func() { _ = srv.Close() })
			servers.Go(func() { _ = srv.Serve(v4) })
			servers.Go(func() { _ = srv.Serve(v6) })
		}
	}
	w := &world{peer: hosts[1].Addr4().String()}
	for i, g := range []**memhost.Gateway{&w.g1, &w.g2} {
		c := configuration(t)
		*g, err = hosts[i].StartGateway(memhost.GatewayConfig{HeartbeatTimeout: 30 * time.Second, Version: "1.2.3", Config: c})
		require.NoError(t, err)
		w.metrics, w.page = append(w.metrics, c.Metrics.Listen), append(w.page, c.Page.Listen)
	}
	load(t, hosts)
	return w
}

func configuration(t *testing.T) config.Config {
	t.Helper()
	c := config.Config{
		Mode: report.ModeEnforce, Carriers: []report.DeviceKind{report.DeviceShm}, Shards: 1,
		Policy: []config.Rule{
			{Name: "web", Match: config.Match{Ports: config.Ports(webPort)}, Action: report.ActionAccelerate},
			{Name: "default", Action: report.ActionPass},
		},
		Limits: config.Limits{
			HandshakeTimeout: 10 * time.Second, Memory: 256 << 20,
			StallTimeout: config.StallTimeout(20 * time.Second), // a look every 5, for the fill of rings
		},
		Metrics: config.Metrics{Listen: freePort(t)}, Page: config.Page{Listen: freePort(t)},
	}
	return c
}

// freePort is a loopback address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// load has programs of the first host fetch from the others, over one connection each for
// a while and over connections of their own.
func load(t *testing.T, hosts []*memhost.Host) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var programs sync.WaitGroup
	t.Cleanup(func() {
		stop()
		programs.Wait()
	})
	fetch := func(from, to *memhost.Host, port uint16, size int64, reuse bool) {
		c := &http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: !reuse}}
		defer c.CloseIdleConnections()
		for i := 0; ctx.Err() == nil; i++ {
			get(ctx, c, fmt.Sprintf("http://%v/%d", netip.AddrPortFrom(to.Addr4(), port), size))
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(20+i/4%12*20) * time.Millisecond): // now more, now less
			}
		}
	}
	programs.Go(func() { fetch(hosts[0], hosts[1], webPort, 4<<20, true) })
	programs.Go(func() { fetch(hosts[0], hosts[1], webPort, 1000, false) })
	programs.Go(func() { fetch(hosts[0], hosts[2], webPort, 1000, false) })
	programs.Go(func() { fetch(hosts[0], hosts[1], plainPort, 1000, false) })
}

// get fetches a URL. What fails, fails because the world ends, or is tried again.
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
