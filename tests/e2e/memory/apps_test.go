package memory

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
)

// Ports of the applications. All but plainPort are in the policies.
const (
	echoPort    = 7000 // repeats until the end of stream, then ends its own
	sourcePort  = 7001 // gets a length, sends so many bytes and their checksum
	sinkPort    = 7002 // reads until the end of stream, answers with the checksum
	resetPort   = 7003 // reads one byte and resets
	holdPort    = 7004 // says one byte and reports how the connection ended
	lateEchoes  = 7005 // an echo that tests open and close themselves
	plainPort   = 7100 // echo, outside of the policies
	closedPort  = 7006 // no listener
	checksumLen = sha256.Size
)

// apps are the server programs of one host.
type apps struct {
	loops sync.WaitGroup
	stop  []func()
	ends  chan error // of connections to holdPort
}

// startApps serves every port on both families.
func startApps(t *testing.T, h *memhost.Host) *apps {
	t.Helper()
	a := &apps{ends: make(chan error, 1024)}
	for port, serve := range map[uint16]func(*netstack.HostConn){
		echoPort: echo, plainPort: echo, sourcePort: source, sinkPort: sink, resetPort: reset, holdPort: a.hold,
	} {
		a.listen(t, h, port, serve)
	}
	return a
}

func (a *apps) listen(t *testing.T, h *memhost.Host, port uint16, serve func(*netstack.HostConn)) {
	t.Helper()
	v4, v6, err := h.Listen(port)
	require.NoError(t, err)
	for _, l := range []net.Listener{v4, v6} {
		a.stop = append(a.stop, func() { _ = l.Close() })
		a.loops.Go(func() { a.accept(l, serve) })
	}
}

func (a *apps) accept(l net.Listener, serve func(*netstack.HostConn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		a.loops.Go(func() {
			defer c.Close()
			serve(c.(*netstack.HostConn))
		})
	}
}

// close ends the listeners; the connections end with their network.
func (a *apps) close() {
	for _, stop := range a.stop {
		stop()
	}
}

func echo(c *netstack.HostConn) {
	if _, err := io.Copy(c, c); err == nil {
		_ = c.CloseWrite()
	}
}

func source(c *netstack.HostConn) {
	var n [8]byte
	if _, err := io.ReadFull(c, n[:]); err == nil {
		_ = send(c, int(binary.BigEndian.Uint64(n[:])))
	}
}

func sink(c *netstack.HostConn) {
	h := sha256.New()
	if _, err := io.Copy(h, c); err == nil {
		_, _ = c.Write(h.Sum(nil))
	}
}

func reset(c *netstack.HostConn) {
	_, _ = io.ReadFull(c, make([]byte, 1))
	c.Abort()
}

func (a *apps) hold(c *netstack.HostConn) {
	if _, err := c.Write([]byte{1}); err != nil {
		a.ends <- err
		return
	}
	_, err := io.Copy(io.Discard, c)
	a.ends <- err
}

// send writes n random bytes, in pieces of all sizes, and their checksum.
func send(w io.Writer, n int) error {
	rng := rand.NewChaCha8([32]byte{byte(n)})
	sizes := rand.New(rng)
	h := sha256.New()
	buf := make([]byte, 200<<10)
	for n > 0 {
		p := buf[:min(n, 1+sizes.IntN(len(buf)))]
		_, _ = rng.Read(p)
		h.Write(p)
		if _, err := w.Write(p); err != nil {
			return err
		}
		n -= len(p)
	}
	_, err := w.Write(h.Sum(nil))
	return err
}

// receive reads what send wrote.
func receive(t *testing.T, r io.Reader, n int) {
	t.Helper()
	h := sha256.New()
	_, err := io.CopyN(h, r, int64(n))
	require.NoError(t, err)
	sum := make([]byte, checksumLen)
	_, err = io.ReadFull(r, sum)
	require.NoError(t, err)
	require.Equal(t, h.Sum(nil), sum, "checksum")
}
