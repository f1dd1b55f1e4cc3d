package ebpf

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// carriedClient is an application whose connection ends in a gateway socket, and
// what the programs say about it.
type carriedClient struct {
	host  *host
	d     *Datapath
	tuple Tuple
	app   *net.TCPConn
	leg   *net.TCPConn
	said  *recorder
	last  time.Time // of the word of says
}

func newCarriedClient(t *testing.T, network, addr string) *carriedClient {
	t.Helper()
	h1, h2 := newPair(t)
	h2.echo("6379")
	c := &carriedClient{host: h1, d: h1.open(config(accelerate(6379)))}
	d2 := h2.open(config(accelerate(6379)))
	c.said = record(t, c.d)
	ln := h1.listen(c.d, network)
	connecting := h1.connectAsync(net.JoinHostPort(addr, "6379"))
	f, _, _ := met(t, c.d, d2)
	c.tuple = f.Tuple
	require.NoError(t, c.d.Transition(f.Tuple, f.ISN, StateCompleting, StateNegotiating))
	require.NoError(t, c.d.InjectApp(f.SYN))
	require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
	var err error
	c.leg, err = ln.AcceptTCP()
	require.NoError(t, err)
	a := <-connecting
	require.NoError(t, a.err)
	c.app = a.c.(*net.TCPConn)
	require.NoError(t, c.app.SetKeepAlive(false)) // Go's default
	require.NoError(t, c.d.Transition(f.Tuple, f.ISN, StateCarrying, StateCompleting))
	t.Cleanup(func() { _, _ = c.app.Close(), c.leg.Close() })
	return c
}

func (c *carriedClient) set(t *testing.T, opt, value int) {
	t.Helper()
	rc, err := c.app.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, opt, value))
	}))
}

// says waits for word of the options of the application's socket, after what it said before.
func (c *carriedClient) says(t *testing.T, want SocketOptions) {
	t.Helper()
	e := c.said.wait(t, patience, func(e Event) bool { return e.Kind == EventOptions && e.Options == want && e.At.After(c.last) })
	require.Equal(t, c.tuple, e.Tuple)
	c.last = e.At.Add(time.Millisecond) // the clocks differ by less
	time.Sleep(time.Millisecond)
}

// TestProbesAreHeld: the gateway socket answers a probe of the application's kernel
// when user space says so and not by itself, and bytes pass all the time.
func TestProbesAreHeld(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ network, addr string }{{"tcp4", "10.77.0.2"}, {"tcp6", "fd77::2"}} {
		t.Run(v.network, func(t *testing.T) {
			c := newCarriedClient(t, v.network, v.addr)
			keepalive := net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 5}
			require.NoError(t, c.app.SetKeepAliveConfig(keepalive))
			began, held := time.Now(), 0
			for ; held <= keepalive.Count; held++ { // so many that stay unanswered would be the end
				e := c.said.wait(t, patience, func(e Event) bool { return e.Kind == EventProbe && !e.At.Before(began) })
				began = time.Now()
				require.Equal(t, c.tuple, e.Tuple)
				require.NoError(t, c.d.InjectApp(ProbeSegment(e.Tuple, e.Seq, e.Ack)))
			}
			require.GreaterOrEqual(t, stat(t, c.d, "probe_held"), uint64(held))
			bulk(t, c.app, c.leg)
			bulk(t, c.leg, c.app)
			keepalive.Count = 1
			require.NoError(t, c.app.SetKeepAliveConfig(keepalive))
			require.NoError(t, c.app.SetReadDeadline(time.Now().Add(patience)))
			_, err := c.app.Read(make([]byte, 1))
			require.ErrorIs(t, err, unix.ETIMEDOUT)
		})
	}
}

// TestUserTimeoutIsTold: user space hears of TCP_USER_TIMEOUT with the next segment.
func TestUserTimeoutIsTold(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCarriedClient(t, "tcp4", "10.77.0.2")
	for _, ms := range []int{3210, 90_000, 0, 1 << 30} {
		c.set(t, unix.TCP_USER_TIMEOUT, ms)
		_, err := c.app.Write([]byte{1})
		require.NoError(t, err)
		c.says(t, SocketOptions{UserTimeout: time.Duration(min(ms, 1<<30-1)) * time.Millisecond, Own: ms > 0, Sent: true})
	}
	_, found := c.said.find(func(e Event) bool { return e.Kind == EventProbe })
	require.False(t, found)
}

// The kernel answers for a socket that has gone with a raw one of its own, which has no
// timeout.
func TestRawSocketsTellNoTimeout(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCarriedClient(t, "tcp4", "10.77.0.2")
	began := time.Now()
	retries := func(n string) { require.NoError(t, netdev.WriteSysctl("ipv4/tcp_retries2", n)) }
	c.host.do(func() {
		retries("3")
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		require.NoError(t, err)
		defer func() { _ = unix.Close(fd) }()
		require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_HDRINCL, 1))
		seg := segment{src: c.tuple.Local, dst: c.tuple.Remote, flags: flagACK, seq: 1, ack: 1}
		require.NoError(t, unix.Sendto(fd, seg.bytes(t), 0, &unix.SockaddrInet4{Addr: c.tuple.Remote.Addr().As4()}))
		retries("4")
	})
	_, err := c.app.Write([]byte{1})
	require.NoError(t, err)
	const want = 6200 * time.Millisecond
	c.says(t, SocketOptions{UserTimeout: want, Sent: true})
	_, found := c.said.find(func(e Event) bool {
		return e.Kind == EventOptions && e.Options.UserTimeout != want && e.At.After(began)
	})
	require.False(t, found)
}

// TestKeepaliveIsTold: user space hears of SO_KEEPALIVE with the next segment, and whether that
// has bytes or their end.
func TestKeepaliveIsTold(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCarriedClient(t, "tcp4", "10.77.0.2")
	for _, kept := range []bool{true, false, true, false} {
		require.NoError(t, c.app.SetKeepAlive(kept))
		_, err := c.app.Write([]byte{1})
		require.NoError(t, err)
		c.says(t, SocketOptions{Kept: kept, Sent: true})
	}
	require.NoError(t, c.app.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 1}))
	c.says(t, SocketOptions{Kept: true})
	require.NoError(t, c.app.SetKeepAlive(false))
	require.NoError(t, c.app.CloseWrite())
	c.says(t, SocketOptions{Sent: true})
}

// TestRetriesAreTold: a tcp_retries2 below the default of the application's namespace is
// such a timeout, as long as tcp_model_timeout() says; one of the socket goes before it.
func TestRetriesAreTold(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCarriedClient(t, "tcp4", "10.77.0.2")
	for _, v := range []struct {
		retries string
		own     int // TCP_USER_TIMEOUT, milliseconds
		want    time.Duration
	}{
		{"0", 0, 200 * time.Millisecond},
		{"3", 0, 3 * time.Second},
		{"9", 0, 204600 * time.Millisecond},
		{"14", 0, 804600 * time.Millisecond},
		{"8", 77, 77 * time.Millisecond},
		{"8", 0, 102200 * time.Millisecond},
		{"15", 0, 0},
	} {
		c.host.do(func() { require.NoError(t, netdev.WriteSysctl("ipv4/tcp_retries2", v.retries)) })
		c.set(t, unix.TCP_USER_TIMEOUT, v.own)
		_, err := c.app.Write([]byte{1})
		require.NoError(t, err)
		c.says(t, SocketOptions{UserTimeout: v.want, Own: v.own > 0, Sent: true})
	}
}
