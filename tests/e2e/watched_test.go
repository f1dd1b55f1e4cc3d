package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/testnet"
)

// lines returns the lines of a gateway's log, each of which must be a JSON document without meaningless fields.
func (g *gw) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(g.proc.Output()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		for name, v := range line {
			require.NotNil(t, v, text)
			require.NotEqual(t, "", v, "%s: %s", name, text)
		}
		lines = append(lines, line)
	}
	return lines
}

// saying returns the lines with a message.
func saying(lines []map[string]any, msg string) []map[string]any {
	return slices.DeleteFunc(slices.Clone(lines), func(l map[string]any) bool { return l["msg"] != msg })
}

// TestWatched checks everything by which operators watch a gateway, on hosts with their programs: the log from the
// first line to the last, the access log, changing the level, probes, metrics of the programs' maps, the status page.
func TestWatched(t *testing.T) {
	t.Parallel()
	w := newServed(t)
	s := settings{Log: "{ level: info, format: json, access: carried }", Extra: "metrics: { listen: \"127.0.0.1:9469\" }\n"}
	g1, g2 := w.upBoth(s)

	p, err := newPair(w.h1, w.h2, netip.AddrPortFrom(w.h2.Addr4, deadPort))
	require.NoError(t, err)
	for try := 0; try < lateTries && w.foundLate(p.event()); try++ { // from the beginning, since everything is counted
		p.close()
		g1.stop()
		g2.stop()
		g1, g2 = w.upBoth(s)
		p, err = newPair(w.h1, w.h2, netip.AddrPortFrom(w.h2.Addr4, deadPort))
		require.NoError(t, err)
	}
	_, err = p.c.Write(make([]byte, 1000))
	require.NoError(t, err)
	_, err = io.ReadFull(p.s, make([]byte, 1000))
	require.NoError(t, err)
	e := p.event()

	// Probes and metrics, as a program of the host reads them, and the page.
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = w.h1.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
		return c, err
	}}}
	get := func(path string) (int, string) {
		resp, err := client.Get("http://127.0.0.1:" + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	code, text := get("9469/healthz")
	require.Equal(t, 200, code, text)
	require.Eventually(t, func() bool { // while its heartbeat is late it is not ready
		code, text = get("9469/readyz?strict=1")
		return code == 200
	}, slowed(30*time.Second), 10*time.Millisecond, "%s", &text)
	require.Equal(t, "ready\nmode enforce\n", text)
	_, text = get("9469/metrics")
	for _, want := range []string{
		`smcgw_ebpf_map_capacity{map="flows"}`, `smcgw_cpu_seconds_total{component="shard0"} `, `smcgw_cpu_seconds_total{component="rest"} `,
		`smcgw_degraded{reason="device_failed"} 0`, "smcgw_draining 0", `smcgw_handshake_duration_seconds_count{carrier="` + string(w.via) + `"} 1`,
		"smcgw_round_trip_seconds_count 1", `smcgw_decisions_total{action="accelerate",rule="test"} 1`,
	} {
		require.Contains(t, text, want)
	}
	page, header, err := g1.client().Page(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(page), e.Remote)
	require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-")
	require.NotContains(t, header.Get("Content-Security-Policy"), "unsafe")
	g1.says("off")
	require.Eventually(t, func() bool {
		code, text = get("9469/readyz")
		return code == 200
	}, slowed(30*time.Second), 10*time.Millisecond, "%s", &text)
	require.Equal(t, "ready\nmode off\n", text)
	code, _ = get("9469/readyz?strict=1")
	require.Equal(t, 503, code)
	g1.says("on")

	// The level can change at run time; debug lines have addresses.
	_, err = g1.client().Set(t.Context(), admin.Setting{Name: "log.level", Value: "debug"})
	require.NoError(t, err)
	p.close()
	require.Eventually(t, func() bool {
		return len(saying(g1.lines(t), "connection ended")) == 1 && len(saying(g2.lines(t), "connection complete")) == 1
	}, slowed(30*time.Second), 10*time.Millisecond)
	for side, g := range map[string]*gw{"client": g1, "server": g2} {
		lines := g.lines(t)
		opened, complete := saying(lines, "connection opened"), saying(lines, "connection complete")
		require.Len(t, opened, 1)
		for _, line := range []map[string]any{opened[0], complete[0]} {
			require.Equal(t, []any{"tcp", side, e.Local, e.Remote, string(w.via)}, []any{line["proto"], line["side"], line["src"], line["dst"], line["carrier"]})
		}
		took, err := time.ParseDuration(fmt.Sprint(complete[0]["duration"]))
		require.NoError(t, err)
		require.Positive(t, took)
	}
	line := saying(g1.lines(t), "connection complete")[0]
	require.Equal(t, []any{1000.0, "closed"}, []any{line["tx_bytes"], line["end"]})
	ended := saying(g1.lines(t), "connection ended") // after the line of the access log
	require.Equal(t, []any{e.Local, e.Remote}, []any{ended[0]["local"], ended[0]["remote"]})
	require.Empty(t, saying(g2.lines(t), "connection ended"))

	// A refused configuration is logged and counted.
	require.NoError(t, os.WriteFile(g1.config, []byte("mode: enforced\nlimit: 7\n"), 0o600))
	g1.signal(g1.proc.Pid(), syscall.SIGHUP)
	refused := "configuration refused, the one before stays in force"
	require.Eventually(t, func() bool { return len(saying(g1.lines(t), refused)) == 1 }, slowed(30*time.Second), 10*time.Millisecond)
	_, text = get("9469/metrics")
	require.Contains(t, text, `smcgw_degraded{reason="config_refused"} 1`)
	require.Contains(t, text, `smcgw_config_reloads_total{result="refused"} 1`)

	g1.stop()
	lines := g1.lines(t)
	up, stopped := saying(lines, "gateway is up"), saying(lines, "gateway has stopped")
	require.Len(t, up, 1)
	require.Equal(t, []any{"eth0"}, up[0]["devices"], "the network device that was found")
	require.NotEmpty(t, up[0]["rdma_devices"])
	require.Len(t, stopped, 1)
	require.Equal(t, 1.0, stopped[0]["carried"])
	_, err = time.ParseDuration(fmt.Sprint(stopped[0]["uptime"]))
	require.NoError(t, err)
}

// TestRefusedStart checks that a gateway that does not start says why in its log, in whatever format.
func TestRefusedStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	g := w.configure(w.h1, settings{Log: "{ format: json }"})
	require.NoError(t, os.WriteFile(g.config, []byte("mode: enforced\nlimit: 7\n"), 0o600))
	p, err := w.h1.Start(binary, "up", "-c", g.config)
	require.NoError(t, err)
	g.proc = p
	require.Error(t, p.Wait())
	lines := saying(g.lines(t), "configuration refused")
	require.Len(t, lines, 2, p.Output())
	require.Equal(t, []any{"mode", 1.0}, []any{lines[0]["field"], lines[0]["line"]})
	require.Equal(t, []any{"limit", 2.0}, []any{lines[1]["field"], lines[1]["line"]})
}
