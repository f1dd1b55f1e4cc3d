package e2e

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/lab/testnet"
)

// tcpEstablished is TCP_ESTABLISHED from the kernel's tcp_states.h.
const tcpEstablished = 1

// unseen is a connect() whose caller does not look at how it went.
type unseen struct{ *os.File }

func (w *world) dialUnseen(t *testing.T, to netip.AddrPort) unseen {
	t.Helper()
	var fd int
	require.NoError(t, w.h1.Do(func() (err error) {
		if fd, err = unix.Socket(sockaddr.Family(to.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err = unix.Connect(fd, sockaddr.Of(to)); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
		return err
	}))
	u := unseen{os.NewFile(uintptr(fd), "tcp")}
	t.Cleanup(func() { _ = u.Close() })
	return u
}

// carriedUnseen makes a connection that is carried. If one finds a gateway late and is native, it makes another.
func (w *world) carriedUnseen(t *testing.T, to netip.AddrPort) unseen {
	t.Helper()
	for try := 0; ; try++ {
		u := w.dialUnseen(t, to)
		u.await(t, tcpEstablished)
		c := w.gateways[w.h1].awaitConn("known", func(c report.ConnInfo) bool {
			return c.Remote == to && c.Local.Port() == u.port(t) && (c.State == "carrying" || c.End == report.EndNative)
		}, "--all")
		if c.End != report.EndNative {
			return u
		}
		require.Less(t, try, lateTries, "%+v", c)
		require.NoError(t, u.Close())
		w.flush()
	}
}

// port returns the local port.
func (u unseen) port(t *testing.T) uint16 {
	t.Helper()
	at, err := sockaddr.Local(int(u.Fd()))
	require.NoError(t, err)
	return at.Port()
}

// await waits for a state of the kernel's socket without reading its error.
func (u unseen) await(t *testing.T, state uint8) {
	t.Helper()
	require.Eventually(t, func() bool { return tcpInfo(u).State == state }, 30*time.Second, 2*time.Millisecond, "state %d", state)
}

// result returns what the caller of connect() sees when it looks.
func (u unseen) result() error { return sockaddr.Err(int(u.Fd())) }

// TestDiesUnseen checks that connect() reports ECONNRESET for a connection that was established and then reset before
// its caller looked: natively, if the server closed its listener before it accepted, and likewise if its gateway
// died.
func TestDiesUnseen(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "native/v4", true: "native/v6"}[v6], func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			ln, err := w.h3.Listen("tcp", w.at(w.h3, v6, ownPort).String())
			require.NoError(t, err)
			u := w.dialUnseen(t, w.at(w.h3, v6, ownPort))
			u.await(t, tcpEstablished)
			require.NoError(t, ln.Close())
			u.await(t, tcpClose)
			require.ErrorIs(t, u.result(), syscall.ECONNRESET)
		})
		for _, host := range []string{"h1", "h2"} {
			t.Run(map[bool]string{false: "carried/v4/", true: "carried/v6/"}[v6]+host, func(t *testing.T) { diesUnseen(t, v6, host) })
		}
	}
}

func diesUnseen(t *testing.T, v6 bool, host string) {
	w := newWorld(t, testnet.Config{})
	w.upDetached(w.h1, ownSettings())
	w.upDetached(w.h2, ownSettings())
	to := w.at(w.h2, v6, ownPort)
	ln, err := w.h2.Listen("tcp", to.String())
	require.NoError(t, err)
	defer ln.Close()
	u := w.carriedUnseen(t, to)
	deaths[1].do(w.gateways[w.net.Host(host)])
	u.await(t, tcpClose)
	require.ErrorIs(t, u.result(), syscall.ECONNRESET)
}
