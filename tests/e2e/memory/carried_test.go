package memory

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
)

const bulk = 3 << 20

// pingPong does n requests and answers.
func pingPong(t *testing.T, c *netstack.HostConn, n int) {
	t.Helper()
	req, res := make([]byte, 64), make([]byte, 64)
	for i := range n {
		binary.BigEndian.PutUint64(req, uint64(i))
		_, err := c.Write(req)
		require.NoError(t, err)
		_, err = io.ReadFull(c, res)
		require.NoError(t, err)
		require.Equal(t, req, res)
	}
}

// closeBoth ends a connection in order from this side.
func closeBoth(t *testing.T, c *netstack.HostConn) {
	t.Helper()
	require.NoError(t, c.CloseWrite())
	n, err := io.Copy(io.Discard, c)
	require.NoError(t, err)
	require.Zero(t, n)
}

func upload(t *testing.T, c *netstack.HostConn, n int) {
	t.Helper()
	h := sha256.New()
	require.NoError(t, send(io.MultiWriter(h, c), n))
	require.NoError(t, c.CloseWrite())
	sum, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, h.Sum(nil), sum)
}

func download(t *testing.T, c *netstack.HostConn, n int) {
	t.Helper()
	require.NoError(t, binary.Write(c, binary.BigEndian, uint64(n)))
	receive(t, c, n)
	closeBoth(t, c)
}

// behaves is what every carrier must do as native TCP does.
func behaves(t *testing.T, w *world, by report.Carrier) {
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		h2 := addr(w.h2)
		t.Run("requests", func(t *testing.T) {
			c := w.dial(t, h2, echoPort)
			pingPong(t, c, 200)
			find(t, w.g1, addrOf(c), wanted{side: report.SideClient, carrier: by, reason: reasonOf[by], state: "carrying"})
			closeBoth(t, c)
			w.carried(t, c, by, report.EndClosed)
		})
		t.Run("upload and half-close", func(t *testing.T) {
			c := w.dial(t, h2, sinkPort)
			upload(t, c, bulk)
			w.carried(t, c, by, report.EndClosed)
		})
		t.Run("download", func(t *testing.T) {
			c := w.dial(t, h2, sourcePort)
			download(t, c, bulk)
			w.carried(t, c, by, report.EndClosed)
		})
		t.Run("both ways", func(t *testing.T) {
			c := w.dial(t, h2, echoPort)
			var sending sync.WaitGroup
			sending.Go(func() { _ = send(c, bulk) })
			receive(t, c, bulk)
			sending.Wait()
			closeBoth(t, c)
			w.carried(t, c, by, report.EndClosed)
		})
		t.Run("server resets", func(t *testing.T) {
			c := w.dial(t, h2, resetPort)
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
			_, err = io.ReadAll(c)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			w.carried(t, c, by, report.EndAborted)
		})
		t.Run("client resets", func(t *testing.T) {
			c := w.hold(t, h2)
			c.Abort()
			require.ErrorIs(t, w.ended(t, w.h2), syscall.ECONNRESET)
			w.carried(t, c, by, report.EndAborted)
		})
		t.Run("client resets after half-close", func(t *testing.T) {
			c := w.dial(t, h2, sourcePort)
			require.NoError(t, binary.Write(c, binary.BigEndian, uint64(1<<30)))
			require.NoError(t, c.CloseWrite())
			_, err := io.CopyN(io.Discard, c, 1<<20)
			require.NoError(t, err)
			c.Abort()
			w.carried(t, c, by, report.EndAborted)
		})
	})
	quiet(t, w.g1)
	quiet(t, w.g2)
}

// hold opens a connection whose server speaks first and then waits.
func (w *world) hold(t *testing.T, to netip.Addr) *netstack.HostConn {
	t.Helper()
	c := w.dial(t, to, holdPort)
	_, err := io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
	return c
}

// ended is how the next connection to a host's holdPort ended there.
func (w *world) ended(t *testing.T, h *memhost.Host) error {
	t.Helper()
	select {
	case err := <-w.apps[h].ends:
		return err
	case <-time.After(patience):
		require.FailNow(t, "the server's connection did not end")
		return nil
	}
}

func TestCarriedBySharedMemory(t *testing.T) {
	w := newWorld(t)
	w.both()
	behaves(t, w, report.CarrierShm)
}

// TestCarriedByRelay: no proof of a carrier comes back, and no gateway
// remembers it.
func TestCarriedByRelay(t *testing.T) {
	w := newWorld(t)
	w.both(func(c *memhost.GatewayConfig) { c.Config.Fallback.NegativeCache = time.Nanosecond })
	w.h2.SetFaults(memhost.Faults{Misdirect: true})
	behaves(t, w, report.CarrierRelay)
}

func TestManyConnections(t *testing.T) {
	w := newWorld(t)
	w.both()
	t.Run("short ones in a row", func(t *testing.T) {
		for i := range 200 {
			to := w.h2.Addr4()
			if i%2 == 1 {
				to = w.h2.Addr6()
			}
			c := w.dial(t, to, echoPort)
			pingPong(t, c, 1)
			require.NoError(t, c.Close())
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var all sync.WaitGroup
		errs := make(chan error, 50)
		for range cap(errs) {
			c := w.dial(t, w.h2.Addr4(), echoPort)
			all.Go(func() { errs <- sendAndEcho(c, 64<<10) })
		}
		all.Wait()
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
	})
	st, err := w.g1.Admin().Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 250, st.FlowsTotal[report.CarrierShm], "%+v", st)
	quiet(t, w.g1)
	quiet(t, w.g2)
}

// sendAndEcho sends n bytes to an echo, reads them back and closes.
func sendAndEcho(c *netstack.HostConn, n int) error {
	sent := make(chan error, 1)
	go func() { sent <- errors.Join(send(c, n), c.CloseWrite()) }()
	k, err := io.Copy(io.Discard, c)
	if err == nil && k != int64(n+checksumLen) {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, <-sent)
}

// TestSameTuple: a tuple may come again at once, from either end of its life.
func TestSameTuple(t *testing.T) {
	w := newWorld(t)
	w.both()
	families(t, func(t *testing.T, addr func(*memhost.Host) netip.Addr) {
		from := netip.AddrPortFrom(addr(w.h1), 23456)
		for range 5 {
			c, err := w.h1.DialFrom(t.Context(), from, netip.AddrPortFrom(addr(w.h2), echoPort))
			require.NoError(t, err)
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			pingPong(t, c, 2)
			c.Abort() // no TIME_WAIT at the client
		}
	})
}

// TestIdle: a carried connection lives while nothing moves.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	w.both()
	c := w.dial(t, w.h2.Addr4(), echoPort)
	pingPong(t, c, 1)
	time.Sleep(3 * time.Second)
	pingPong(t, c, 1)
	w.carried(t, c, report.CarrierShm, "")
}
