package testnet

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/apps"
)

func TestAppServers(t *testing.T) {
	_, h1, h2 := start(t, Config{})
	srv := startApp(t, h2, "serve", "first=[::]:7001", "rst=[::]:7002", "close=[::]:7003", "hold=[::]:7004", "echo=[::]:7005", "sink=[::]:7006")
	at := func(port uint16) string { return h2.AddrPort6(port).String() }

	e := runApp(t, h1, "ping", "-banner", "-to", at(7001), "-count", "3")
	require.Equal(t, 3, e.OK, e.Error)
	e = runApp(t, h1, "ping", "-onebyte", "-to", at(7005), "-size", "2000")
	require.Equal(t, 1, e.OK, e.Error)
	e = runApp(t, h1, "ping", "-to", at(7002))
	require.Equal(t, "ECONNRESET", e.Errno)
	e = runApp(t, h1, "ping", "-to", at(7003), "-size", "1")
	require.Equal(t, 1, e.Failed)
	e = runApp(t, h1, "ping", "-to", at(7004), "-limit", "100ms")
	require.Equal(t, "TIMEOUT", e.Errno)
	// 64 MiB do not fit into buffers: the writer of a held connection blocks.
	e = runApp(t, h1, "ping", "-to", at(7004), "-limit", "200ms", "-size", fmt.Sprint(64<<20))
	require.Equal(t, "TIMEOUT", e.Errno)

	e = runApp(t, h1, "connect", "-to", at(7999))
	require.Equal(t, "ECONNREFUSED", e.Errno)
	require.Equal(t, 1, e.Failed)
	e = runApp(t, h1, "connect", "-rst", "-to", at(7005))
	require.Equal(t, 1, e.OK, e.Error)
	_, err := srv.WaitEvents(patience(t, 30*time.Second), 1, func(ev apps.Event) bool {
		return ev.Event == "closed" && ev.Remote == e.Local && ev.Errno == "ECONNRESET"
	})
	require.NoError(t, err)
}

func TestAppHold(t *testing.T) {
	_, h1, h2 := start(t, Config{})
	srv := startApp(t, h2, "serve", "echo=[::]:7000")
	p := startApp(t, h1, "hold", "-to", h2.AddrPort4(7000).String(), "-count", "3")
	ctx := patience(t, 20*time.Second)
	done := func(mode string, ok int) {
		t.Helper()
		ev, err := p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "done" && e.Mode == mode })
		require.NoError(t, err)
		require.Equal(t, ok, ev[0].OK, ev[0].Error)
	}
	done("connect", 3)
	require.NoError(t, p.Send("ping"))
	done("ping", 3)
	require.NoError(t, p.Send("fin"))
	done("fin", 3)
	ended, err := p.WaitEvents(ctx, 3, func(e apps.Event) bool { return e.Event == "ended" })
	require.NoError(t, err)
	for _, e := range ended {
		require.Empty(t, e.Error, "an orderly end is no error")
	}
	require.NoError(t, p.CloseInput())
	require.NoError(t, p.Wait())

	p = startApp(t, h1, "hold", "-to", h2.AddrPort4(7000).String())
	done("connect", 1)
	require.NoError(t, p.Send("ping")) // a connection that was not accepted yet would be reset
	done("ping", 1)
	require.NoError(t, srv.Kill())
	ended, err = p.WaitEvents(ctx, 1, func(e apps.Event) bool { return e.Event == "ended" })
	require.NoError(t, err)
	require.Empty(t, ended[0].Errno, "a killed process's kernel sends FIN")
	require.NoError(t, p.Send("rst"))
	done("rst", 1)
}

func TestAppChurnAndReuse(t *testing.T) {
	_, h1, h2 := start(t, Config{})
	startApp(t, h2, "serve", "-quiet", "transfer=[::]:7000", "echo=[::]:7001")
	e := runApp(t, h1, "churn", "-to", h2.AddrPort4(7000).String(), "-count", "200", "-parallel", "20", "-size", "20000")
	require.Equal(t, 200, e.OK, "%v", e.Errnos)
	require.Positive(t, e.Micros)
	// The same four-tuple again and again.
	e = runApp(t, h1, "churn", "-rst", "-bind", h1.AddrPort4(5555).String(), "-to", h2.AddrPort4(7000).String(), "-count", "20", "-size", "100")
	require.Equal(t, 20, e.OK, "%v", e.Errnos)
	e = runApp(t, h1, "churn", "-to", h2.AddrPort4(7999).String(), "-count", "5")
	require.Equal(t, map[string]int{"ECONNREFUSED": 5}, e.Errnos)
}

// The special sockets must be what they claim to be.
func TestAppSockets(t *testing.T) {
	n, h1, h2 := start(t, Config{})
	const mptcpKind, tfoKind = 30, 34
	in := sniff(t, h2)
	require.NoError(t, h2.SetSysctl("net.ipv4.tcp_fastopen", "3"))
	startApp(t, h2, "serve", "-mptcp", "-tfo", "transfer=[::]:7000")
	kind := func(k byte) func(v frameView) bool {
		return func(v frameView) bool {
			for o := v.options(); len(o) > 0; {
				switch {
				case o[0] == k:
					return v.flags()&(flagSYN|flagACK) == flagSYN
				case o[0] == 1:
					o = o[1:]
				case o[0] == 0 || len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
					return false
				default:
					o = o[o[1]:]
				}
			}
			return false
		}
	}
	to := h2.AddrPort4(7000).String()
	e := runApp(t, h1, "transfer", "-mptcp", "-to", to, "-up", "100000", "-down", "100000")
	require.Equal(t, 1, e.OK, e.Error)
	_, ok := in.next(t, arrives, kind(mptcpKind))
	require.True(t, ok)

	for range 2 { // the first asks for a cookie, the second has data
		e = runApp(t, h1, "transfer", "-tfo", "-to", to, "-up", "1000", "-down", "1000")
		require.Equal(t, 1, e.OK, e.Error)
	}
	v, ok := in.next(t, arrives, kind(tfoKind))
	require.True(t, ok)
	require.Equal(t, v.end, v.ipLast, "no data without a cookie")
	v, ok = in.next(t, arrives, kind(tfoKind))
	require.True(t, ok)
	require.Greater(t, v.ipLast, v.end, "data on the SYN")

	e = runApp(t, h1, "transfer", "-to", to, "-up", "1000")
	require.Equal(t, 1, e.OK, e.Error)
	require.Zero(t, boxStats(t, n).Offers)
}

func TestAppUsage(t *testing.T) {
	_, h1, _ := start(t, Config{Hosts: []string{"h1"}})
	for _, args := range [][]string{{"nonsense"}, {"connect"}, {"connect", "-to", "x"}, {"connect", "-no-such"}, {"serve"}, {"serve", "nomode=:1"}} {
		cmd := h1.AppCommand(patience(t, 10*time.Second), args...)
		require.Error(t, cmd.Run(), args)
	}
	_, err := h1.RunApp(patience(t, 10*time.Second), "nonsense")
	require.Error(t, err)
	_, err = h1.StartApp("serve", "echo=1.2.3.4:1")
	require.Error(t, err)
}
