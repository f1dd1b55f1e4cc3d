package socket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/soft"
)

func listenOn(t testing.TB, d *duo, lc ListenConfig) *Listener {
	lc.Stack = d.b
	l, err := lc.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.2:0"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func managedDuo(t testing.TB) *duo {
	return softDuo(t, [2]string{"127.0.0.1", "127.0.0.2"}, 2, StackConfig{})
}

func TestDialContext(t *testing.T) {
	d := managedDuo(t)
	l := listenOn(t, d, ListenConfig{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	dialer := Dialer{Stack: d.a, Timeout: patience}
	c, err := dialer.DialContext(t.Context(), "tcp4", net.JoinHostPort("127.0.0.2", port))
	require.NoError(t, err)
	require.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	require.Equal(t, "127.0.0.1", c.LocalAddr().(*net.TCPAddr).IP.String())
	_, err = c.Write([]byte("echo"))
	require.NoError(t, err)
	require.NoError(t, c.(*Conn).CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "echo", string(got))
	require.NoError(t, c.Close())

	for _, bad := range [][2]string{
		{"udp", "127.0.0.2:1"}, {"tcp6", "127.0.0.2:1"}, {"tcp", "127.0.0.2"}, {"tcp", "127.0.0.2:nope"},
	} {
		_, err := dialer.DialContext(t.Context(), bad[0], bad[1])
		var op *net.OpError
		require.ErrorAs(t, err, &op, "%v", bad)
	}
	dialer.LocalAddr = netip.MustParseAddrPort("127.0.0.9:0")
	_, err = dialer.Dial(t.Context(), l.cm.Addr())
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

// A client that cannot be served is told so.
func TestDialRefused(t *testing.T) {
	d := managedDuo(t)
	dialer := Dialer{Stack: d.a, Timeout: patience}
	_, err := dialer.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.2:1"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.Equal(t, "dial", op.Op)

	// The listener has no memory for the connection.
	l := listenOn(t, d, ListenConfig{Config: ConnConfig{RecvBuffer: rmb.MaxRegion + 1}})
	_, err = dialer.Dial(t.Context(), l.cm.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NotZero(t, d.b.Stats().Refused)

	// The dialer has none.
	dialer.Config.RecvBuffer = rmb.MaxRegion + 1
	_, err = dialer.Dial(t.Context(), l.cm.Addr())
	require.ErrorIs(t, err, rmb.ErrNoMemory)
	require.Zero(t, d.a.Stats().Pool.Used)
	require.Zero(t, d.b.Stats().Pool.Used)
}

// Connection data of another version is refused by a listener and is ENOTSUP for a dialer (rsocket.c rs_do_connect).
func TestDialVersion(t *testing.T) {
	d := managedDuo(t)
	l := listenOn(t, d, ListenConfig{})
	c, err := d.a.newConn(ConnConfig{})
	require.NoError(t, err)
	data := c.ep.ConnData().Append(nil)
	data[0] = 2
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = d.a.manager.Dial(ctx, cm.DialParams{QPParams: c.params(), Remote: l.cm.Addr(), PrivateData: data})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, c.discard())

	other, err := d.b.manager.Listen(netip.MustParseAddrPort("127.0.0.2:0"), cm.ListenConfig{})
	require.NoError(t, err)
	defer other.Close()
	go func() {
		r, err := other.Accept(ctx)
		if err != nil {
			return
		}
		c, err := d.b.newConn(ConnConfig{})
		if err != nil {
			return
		}
		made, err := r.Accept(ctx, cm.AcceptParams{QPParams: c.params(), PrivateData: data})
		if err == nil {
			_ = disconnect(made)
		}
		_ = c.discard()
	}()
	_, err = (&Dialer{Stack: d.a}).Dial(ctx, other.Addr())
	require.ErrorIs(t, err, syscall.ENOTSUP)
	require.ErrorIs(t, err, rsocket.ErrVersion)
	require.Eventually(t, func() bool { return d.b.Stats().Pool.Used == 0 }, 30*time.Second, time.Millisecond)
}

func TestDialEnds(t *testing.T) {
	d := managedDuo(t)
	nobody := netip.MustParseAddrPort("127.0.0.77:7")
	_, err := (&Dialer{Stack: d.a, Timeout: 50 * time.Millisecond}).Dial(t.Context(), nobody)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = (&Dialer{Stack: d.a}).Dial(ctx, nobody)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, d.a.Stats().Pool.Used)
}

// Timeout bounds the lookup of a name.
func TestDialLimitsLookup(t *testing.T) {
	old := net.DefaultResolver
	defer func() { net.DefaultResolver = old }()
	ends := make(chan error, 1)
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done() // given up, or the time of the question is over
		select {
		case ends <- ctx.Err():
		default: // there is a question for each server and domain
		}
		return nil, ctx.Err()
	}}
	d := Dialer{Stack: managedDuo(t).a, Timeout: 10 * time.Millisecond}
	_, err := d.DialContext(t.Context(), "tcp4", "name.invalid:7")
	require.Error(t, err)
	require.ErrorIs(t, outcome(t, "no question", ends), context.Canceled)
}

// Of several addresses none has all of the time.
func TestDialDividesTime(t *testing.T) {
	whole, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	all, _ := whole.Deadline()
	for n, want := range map[int]bool{1: false, 2: true, 4: true} {
		part, cancel := partOf(whole, n)
		end, ok := part.Deadline()
		require.True(t, ok)
		require.Equal(t, want, end.Before(all), "%d addresses", n)
		cancel()
	}
	part, cancel := partOf(t.Context(), 2)
	defer cancel()
	_, ok := part.Deadline()
	require.False(t, ok)
}

// A peer that never answers is a timeout to a program that asks, also where no context ended the attempt.
func TestDialSilentPeer(t *testing.T) {
	d := softDuo(t, [2]string{"127.0.0.1", "127.0.0.2"}, 1, StackConfig{CM: cm.Config{ResponseTimeout: 8, PacketLifetime: 8, Retries: 1}})
	_, err := (&Dialer{Stack: d.a}).Dial(t.Context(), netip.MustParseAddrPort("127.0.0.77:7"))
	require.Equal(t, "timeout", kind(err))
}

// So is a listener that takes no request before the manager gives up.
func TestDialUnansweredRequest(t *testing.T) {
	d := softDuo(t, [2]string{"127.0.0.1", "127.0.0.2"}, 1, StackConfig{CM: cm.Config{ServiceTimeout: 8}})
	l, err := d.b.manager.Listen(netip.MustParseAddrPort("127.0.0.2:0"), cm.ListenConfig{Backlog: 1})
	require.NoError(t, err)
	defer l.Close()
	_, err = (&Dialer{Stack: d.a, Timeout: patience}).Dial(t.Context(), l.Addr())
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout())
}

// adapterLike is a device whose queue pair 1 belongs to the kernel.
type adapterLike struct{ verbs.Device }

func (d adapterLike) Attr() verbs.DeviceAttr {
	attr := d.Device.Attr()
	attr.Ops &^= verbs.OpGSI
	return attr
}

// TestKernelManagerAbsent: on an adapter the manager is the kernel's. A host without it says so to Dial and Listen, and
// the stack is of use all the same.
func TestKernelManagerAbsent(t *testing.T) {
	if _, err := os.Stat(rdmacm.DevicePath); err == nil {
		t.Skip("the kernel has a manager")
	}
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	s, err := NewStack(adapterLike{dev}, StackConfig{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = (&Dialer{Stack: s}).Dial(t.Context(), netip.MustParseAddrPort("127.0.0.1:1"))
	require.ErrorIs(t, err, ErrNoManager)
	require.ErrorIs(t, err, rdmacm.ErrAbsent)
	_, err = (&ListenConfig{Stack: s}).Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:1"))
	require.ErrorIs(t, err, rdmacm.ErrAbsent)
}

// A listener holds as many connections as its backlog says until they are
// accepted; the others are refused.
func TestListenerBacklog(t *testing.T) {
	d := managedDuo(t)
	l := listenOn(t, d, ListenConfig{Backlog: 3})
	dialer := Dialer{Stack: d.a, Timeout: patience}
	var held []*Conn
	for range 3 {
		c, err := dialer.Dial(t.Context(), l.cm.Addr())
		require.NoError(t, err)
		held = append(held, c)
	}
	_, err := dialer.Dial(t.Context(), l.cm.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	accepted, err := l.AcceptConn(t.Context())
	require.NoError(t, err)
	c, err := dialer.Dial(t.Context(), l.cm.Addr())
	require.NoError(t, err)
	held = append(held, c)
	require.Eventually(t, func() bool { return len(l.ready) == 3 }, 30*time.Second, time.Millisecond)
	// What was not accepted is closed with the listener, as an end.
	require.NoError(t, l.Close())
	for i, c := range held {
		soon(t, c)
		if c.LocalAddr().String() == accepted.RemoteAddr().String() {
			require.NoError(t, accepted.Close())
		}
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "%d", i)
		require.NoError(t, c.Close())
	}
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = dialer.Dial(t.Context(), l.cm.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	other := listenOn(t, d, ListenConfig{})
	_, err = other.AcceptConn(ctx)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = (&ListenConfig{Stack: d.b}).Listen(t.Context(), other.cm.Addr())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

// Many connections at once, made and used by many goroutines; in the end nothing is left of them.
func TestManyConns(t *testing.T) {
	const conns, rounds = 150, 8
	each(t, func(t *testing.T, d *duo) {
		var all sync.WaitGroup
		errs := make(chan error, 2*conns)
		var mu sync.Mutex
		for i := range conns {
			mu.Lock()
			a, b := d.pair(ConnConfig{RecvBuffer: 16 << 10, SendBuffer: 16 << 10})
			mu.Unlock()
			soon(t, a, b)
			all.Go(func() {
				_, err := io.Copy(b, b)
				errs <- errors.Join(err, b.Close())
			})
			all.Go(func() { errs <- errors.Join(converse(a, i, rounds), a.Close()) })
		}
		all.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		for _, s := range []*Stack{d.a, d.b} {
			require.Eventually(t, func() bool { return s.Stats().Connections == 0 && s.Stats().Pool.Used == 0 },
				30*time.Second, time.Millisecond)
			require.Zero(t, s.Stats().CQErrors)
			require.Zero(t, s.Stats().Failed)
		}
	})
}

// converse sends bytes that come back.
func converse(c *Conn, seed, rounds int) error {
	want, got := patterned{seed}, patterned{seed}
	for i := range rounds {
		n := 1 + (seed*31+i*977)%12000
		if _, err := c.Write(want.next(n)); err != nil {
			return err
		}
		buf := make([]byte, n)
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if !got.check(buf) {
			return io.ErrUnexpectedEOF
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	return nil
}
