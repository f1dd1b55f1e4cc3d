package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// startAside is a gateway whose place is another one's.
func startAside(t *testing.T) (a *testAdmin, aside *Client) {
	t.Helper()
	a = startAdmin(t, func(c *config.Config) { c.Metrics.Listen = freeAddr(t) })
	aside = NewClient(a.cfg.Admin + config.DrainingSuffix)
	require.NoError(t, a.server.StepAside())
	t.Cleanup(aside.Close)
	return a, aside
}

func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// version asks which gateway is found.
func version(t *testing.T, c *Client) string {
	t.Helper()
	v, err := c.Version(t.Context())
	require.NoError(t, err)
	return v.Version
}

// A gateway that steps aside is found in both places until another one is in its own, which tells of
// it while it drains, and stays when it ends.
func TestStepAside(t *testing.T) {
	a, aside := startAside(t)
	_, err := net.Dial("tcp", a.cfg.Metrics.Listen)
	require.Error(t, err)
	require.Equal(t, "1.2.3", version(t, a.client))
	require.Equal(t, "1.2.3", version(t, aside))
	_, err = a.ctl.Drain(time.Second)
	require.NoError(t, err)

	ctl := &fakeControl{}
	b, err := Succeed(a.cfg, "2.0.0", nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.Serve(t.Context(), ctl, ctl) }()
	require.Equal(t, "2.0.0", version(t, a.client))
	st, err := a.client.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, st.Predecessor.Flows)
	require.Equal(t, 3, b.Predecessor().Flows)
	require.Nil(t, a.server.Predecessor())

	a.beside = true
	a.stop()
	require.Equal(t, "2.0.0", version(t, a.client), "the socket of the new one stays")
	require.NoFileExists(t, a.cfg.Admin+config.DrainingSuffix)
	require.NoError(t, b.Close())
	require.Error(t, <-done, "its listener broke")
	names, err := os.ReadDir(filepath.Dir(a.cfg.Admin))
	require.NoError(t, err)
	require.Len(t, names, 1, "the lock")
}

// Who watches a gateway watches the one that takes over, too, each once, until both have ended.
func TestWatchBothGateways(t *testing.T) {
	a, aside := startAside(t)
	got, done := make(chan string, 10), make(chan error, 1)
	tell := func(feed *report.Feed, port uint16) {
		c := sampleConns()[1]
		c.Remote = netip.AddrPortFrom(c.Remote.Addr(), port)
		feed.Tell(report.EventNative, c)
	}
	go func() {
		done <- a.client.Watch(t.Context(), report.ConnFilter{}, func() { tell(a.ctl.feed, 1) }, func(e report.Event) error {
			got <- e.Conn.Remote.String()
			return nil
		})
	}()
	require.Contains(t, <-got, ":1")
	ctl := &fakeControl{feed: report.NewFeed()}
	b, err := Succeed(a.cfg, "2.0.0", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx, ctl, ctl) }()
	require.Eventually(t, ctl.feed.Watched, 30*time.Second, time.Millisecond)
	tell(ctl.feed, 2)
	require.Contains(t, <-got, ":2")
	tell(a.ctl.feed, 3)
	require.Contains(t, <-got, ":3")
	cancel() // as one that gives up
	require.NoError(t, <-served)
	require.NoError(t, a.server.StepBack())
	require.Equal(t, "1.2.3", version(t, a.client))
	time.Sleep(3 * successorPoll)
	tell(a.ctl.feed, 4)
	require.Contains(t, <-got, ":4")
	aside.Close()
	a.stop()
	require.ErrorIs(t, <-done, ErrDaemonUnreachable)
	require.Empty(t, got)
}

// A gateway steps back to a place where no other one is any more.
func TestStepBack(t *testing.T) {
	for name, other := range map[string]func(*testing.T, *testAdmin) (ends func()){
		"never came": func(*testing.T, *testAdmin) func() { return func() {} },
		"died": func(t *testing.T, a *testAdmin) func() {
			b, err := listenAdminSocket(a.cfg.Admin, true)
			require.NoError(t, err)
			return func() { require.NoError(t, errors.Join(b.UnixListener.Close(), b.lock.Close())) } // as the kernel does
		},
		"ended": func(t *testing.T, a *testAdmin) func() {
			b, err := Succeed(a.cfg, "2.0.0", nil)
			require.NoError(t, err)
			return func() { require.NoError(t, b.Close()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, aside := startAside(t)
			ends := other(t, a)
			if name != "never came" {
				require.ErrorIs(t, a.server.StepBack(), errAdminInUse)
				require.Equal(t, "1.2.3", version(t, aside))
			}
			ends()
			for range 2 {
				require.NoError(t, a.server.StepBack())
			}
			require.Equal(t, "1.2.3", version(t, a.client))
			require.NoFileExists(t, a.cfg.Admin+config.DrainingSuffix)
			c, err := net.Dial("tcp", a.cfg.Metrics.Listen)
			require.NoError(t, err)
			_ = c.Close()
			_, err = Listen(a.cfg, "x", nil)
			require.ErrorIs(t, err, errAdminInUse, "the lock is back")
		})
	}
}

// A gateway that stops while another one keeps its place leaves that alone.
func TestStopAside(t *testing.T) {
	a, _ := startAside(t)
	hung, err := listenAdminSocket(a.cfg.Admin, true)
	require.NoError(t, err)
	a.stop()
	require.NoFileExists(t, a.cfg.Admin+config.DrainingSuffix)
	require.FileExists(t, a.cfg.Admin)
	require.NoError(t, hung.Close())
}

// A connection is handed over as it is, both ways, and only by a gateway that takes it.
func TestHandover(t *testing.T) {
	a := startAdminWith(t, nil, func(s *Server) {
		s.Handover = func(_ context.Context, c net.Conn) {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}
	})
	c, err := a.client.Handover(t.Context())
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "claim\n")
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	said, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "claim\n", string(said))

	_, err = NewClient(t.TempDir() + "/none").Handover(t.Context())
	require.True(t, Absent(err), "%v", err)
}

// A drain is told about until it is over, also when it lasts.
func TestAdminDrain(t *testing.T) {
	a := startAdmin(t, nil)
	var told []report.DrainInfo
	progress := make(chan struct{}, 16)
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Drain(t.Context(), 90*time.Second, func(i report.DrainInfo) {
			told = append(told, i)
			progress <- struct{}{}
		})
		done <- err
	}()
	<-progress
	st, err := a.client.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, st.Draining.Flows)
	a.ctl.endDrain(2)
	require.NoError(t, <-done)
	require.Equal(t, []time.Duration{90 * time.Second}, a.ctl.drained)
	require.False(t, told[0].Done)
	last := told[len(told)-1]
	require.True(t, last.Done)
	require.Equal(t, 2, last.Flows)
	for _, bad := range []time.Duration{-time.Second, 8 * 24 * time.Hour} {
		_, err := a.client.Drain(t.Context(), bad, func(report.DrainInfo) {})
		require.ErrorContains(t, err, "timeout")
	}
}

// TestDrainOfASilentDaemon: a daemon that stops answering, at once or in a drain, does not keep the caller.
func TestDrainOfASilentDaemon(t *testing.T) {
	for name, said := range map[string]string{"at once": "", "later": `{"schema":"smcgw.drain/v1","flows":3}`} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", t.TempDir()+"/s")
			require.NoError(t, err)
			defer l.Close()
			released := make(chan struct{})
			defer close(released)
			go func() {
				_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if said != "" {
						_, _ = io.WriteString(w, said)
						_ = http.NewResponseController(w).Flush()
					}
					<-released
				}))
			}()
			c := NewClient(l.Addr().String())
			defer c.Close()
			c.http.Timeout = 100 * time.Millisecond
			last, err := c.drain(t.Context(), time.Hour, 0, func(report.DrainInfo) {})
			require.ErrorIs(t, err, ErrDaemonUnreachable)
			require.ErrorIs(t, err, errDrainSilent)
			require.Equal(t, said != "", last.Flows == 3)
			_, err = c.Status(t.Context())
			require.ErrorIs(t, err, ErrDaemonUnreachable)
			require.EqualError(t, err, "daemon not reachable at "+l.Addr().String()+": what listens there does not answer in time")
		})
	}
}

// A process that dies breaks its connections before it gives up its locks.
func TestTheLockOfTheDeadIsAwaited(t *testing.T) {
	die := func(path string) {
		dying, err := lockFile(path + ".lock")
		require.NoError(t, err)
		time.AfterFunc(50*time.Millisecond, func() { _ = dying.Close() })
	}
	for _, successor := range []bool{false, true} {
		path := t.TempDir() + "/s"
		die(path)
		s, err := listenAdminSocket(path, successor)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		die(path)
		lock, err := cleanupLock(path)
		require.NoError(t, err)
		require.NoError(t, lock.Close())
	}
}
