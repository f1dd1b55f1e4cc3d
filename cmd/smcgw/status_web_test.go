package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStatusWeb: the page of a daemon is at the printed address, with its headers, and at no
// other, until the command ends.
func TestStatusWeb(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Config{Admin: dir + "/sock", StateDir: dir + "/state"}.WithDefaults()
	server, err := admin.Listen(cfg, "1.2.3", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	server.Page = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		_, _ = io.WriteString(w, "the page")
	})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	d := &fakeDaemon{}
	serving.Go(func() { _ = server.Serve(ctx, d, d) })

	var stdout, stderr lockedBuffer
	status := make(chan int, 1)
	verb, interrupt := context.WithCancel(t.Context())
	go func() {
		status <- run(verb, &env{stdout: &stdout, stderr: &stderr}, []string{"status", "--web", "--socket", cfg.Admin})
	}()
	address := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+)(/[A-Z2-7]{26}/)\n$`)
	require.Eventually(t, func() bool { return address.MatchString(stdout.String()) }, time.Minute, 10*time.Millisecond, stderr.String())
	m := address.FindStringSubmatch(stdout.String())
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]int{m[2]: 200, "/": 404, m[2] + "v1/off": 404, "/metrics": 404} {
		resp, err := c.Get(m[1] + path)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, path)
		if want == 200 {
			require.Equal(t, "the page", string(body))
			require.Equal(t, "default-src 'none'", resp.Header.Get("Content-Security-Policy"))
		}
	}
	resp, err := c.Post(m[1]+m[2], "text/plain", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	interrupt()
	require.Equal(t, exitOK, <-status)
	require.Contains(t, stderr.String(), "ssh -L")
	cancel()
	serving.Wait()
	require.Equal(t, exitUnreachable, run(t.Context(), &env{stdout: &stdout, stderr: &stderr}, []string{"status", "--web", "--socket", cfg.Admin}))
}
