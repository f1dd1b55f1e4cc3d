package kernel

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// listen listens on the second host.
func (p *fakePair) listen(t *testing.T, backlog int) *listener {
	t.Helper()
	l, err := p.b.Listen(p.listenerOnHost, cm.ListenConfig{Backlog: backlog})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l.(*listener)
}

func (p *fakePair) dial(ctx context.Context, qp *numberedQP) (cm.Conn, error) {
	return p.a.Dial(ctx, cm.DialParams{QPParams: cm.QPParams{QP: qp}, Remote: p.listenerOnHost, PrivateData: []byte("hello")})
}

// connect makes a connection between the hosts.
func (p *fakePair) connect(t *testing.T, l *listener, client, server *numberedQP) (c, s cm.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var both sync.WaitGroup
	var err, acceptErr error
	both.Go(func() { s, acceptErr = acceptOne(ctx, l, server) })
	c, err = p.dial(ctx, client)
	require.NoError(t, err)
	both.Wait()
	require.NoError(t, acceptErr)
	return c, s
}

// eventually waits for what must happen.
func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, time.Millisecond, what)
}

func TestConnection(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	for range 3 { // the handles are used again
		client, server := newQP(1), newQP(2)
		c, s := p.connect(t, l, client, server)
		require.Equal(t, "hello", string(s.PrivateData()))
		require.Equal(t, "welcome", string(c.PrivateData()))
		require.Equal(t, c.LocalAddr(), s.RemoteAddr())
		require.Equal(t, p.listenerOnHost, c.RemoteAddr())
		require.Equal(t, client, c.QP())
		a := client.Query()
		require.EqualValues(t, 2, a.AH.SGIDIndex, "RoCE v2")
		require.EqualValues(t, 1, a.AH.Port)
		require.EqualValues(t, 12, a.MinRNRTimer)
		require.EqualValues(t, 2, a.DestQPNum)
		require.Equal(t, verbs.QPSRTS, server.State())

		over := make(chan error, 2)
		s.AfterDone(func() { over <- s.Err() })
		require.NoError(t, c.Disconnect(t.Context()))
		require.ErrorIs(t, <-over, cm.ErrDisconnected)
		require.ErrorIs(t, c.Err(), cm.ErrClosed)
		s.AfterDone(func() { over <- s.Err() })
		require.ErrorIs(t, <-over, cm.ErrDisconnected)
		require.Equal(t, verbs.QPSRTS, server.State(), "left to its owner")
		require.NoError(t, s.Disconnect(t.Context()))
		require.NoError(t, c.Disconnect(t.Context()), "again")
		require.Equal(t, verbs.QPSErr, server.State())
		eventually(t, func() bool { return p.net.identifiers() == 1 }, "the listener is left")
	}
}

// TestStaleHandle: a connection that is over commands no identifier that has got its handle since.
func TestStaleHandle(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	c, s := p.connect(t, l, newQP(1), newQP(2))
	require.NoError(t, c.Disconnect(t.Context()))
	<-s.Done()
	eventually(t, func() bool { return p.net.identifiers() == 1 }, "the listener is left")
	c2, s2 := p.connect(t, l, newQP(3), newQP(4))
	require.Equal(t, c.(*conn).id.handle, c2.(*conn).id.handle)
	require.NoError(t, c.Disconnect(t.Context()))
	require.NoError(t, s.Disconnect(t.Context()))
	require.NoError(t, c2.Err())
	require.NoError(t, s2.Err())
}

func TestRefusals(t *testing.T) {
	p := newFakePair(t)
	_, err := p.dial(t.Context(), newQP(1))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	l := p.listen(t, 1)
	_, err = p.b.Listen(p.listenerOnHost, cm.ListenConfig{})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = p.b.Listen(netip.AddrPortFrom(netip.Addr{}, 7471), cm.ListenConfig{})
	require.ErrorIs(t, err, syscall.EADDRINUSE, "at all addresses")
	_, err = p.b.Listen(netip.AddrPortFrom(p.addrA, 0), cm.ListenConfig{})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)

	refused := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := p.dial(t.Context(), newQP(1))
			refused <- err
		}()
	}
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED, "backlog")
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED, "backlog")
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.Error(t, r.Reject(cm.RejectNoResources, make([]byte, 149)))
	require.NoError(t, r.Reject(cm.RejectNoResources, []byte("no")))
	err = <-refused
	var rejected *cm.RejectError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, "no", string(rejected.PrivateData))
	eventually(t, func() bool { return p.net.identifiers() == 1 }, "the listener is left")
}

// TestOtherDevice: addresses of another adapter are neither dialed from nor listened to.
func TestOtherDevice(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	p.a.dev = fakeDevice{netip.MustParseAddr("10.0.0.9")}
	_, err := p.dial(t.Context(), newQP(1))
	require.ErrorIs(t, err, ErrOtherDevice)

	p.a.dev = fakeDevice{p.addrA}
	p.b.dev = fakeDevice{netip.MustParseAddr("10.0.0.9")}
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		accepted <- err
	}()
	_, err = p.dial(t.Context(), newQP(1))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	cancel()
	require.ErrorIs(t, <-accepted, context.Canceled)
}

// TestNoAnswer: what the peer does not answer ends with the context.
func TestNoAnswer(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan error, 1)
	go func() {
		_, err := p.dial(ctx, newQP(1))
		dialed <- err
	}()
	seen := func(ids int) func() bool {
		return func() bool {
			p.net.mu.Lock()
			defer p.net.mu.Unlock()
			return len(l.requests) == 1 && len(p.ka.ids) == ids
		}
	}
	eventually(t, seen(1), "request")
	cancel()
	require.ErrorIs(t, <-dialed, context.Canceled)
	eventually(t, seen(0), "its end")
	server := newQP(2)
	_, err := acceptOne(t.Context(), l, server)
	require.ErrorIs(t, err, syscall.EINVAL, "withdrawn")
	require.Equal(t, verbs.QPSErr, server.State())

	for _, k := range []*fakeKernel{p.ka, p.kb} {
		k.net.mu.Lock()
		k.mute[rdmacm.Disconnected] = true
		k.net.mu.Unlock()
	}
	c, s := p.connect(t, l, newQP(3), newQP(4))
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Disconnect(ctx), context.DeadlineExceeded)
	require.ErrorIs(t, c.Err(), cm.ErrClosed)
	require.NoError(t, s.Err())
}

// TestEstablishedByData: data that arrives is as good as the confirmation that is lost.
func TestEstablishedByData(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	p.kb.mute[rdmacm.Established] = true
	dialed := make(chan error, 1)
	go func() {
		_, err := p.dial(t.Context(), newQP(1))
		dialed <- err
	}()
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	go func() {
		if err := <-dialed; err != nil {
			t.Error(err)
		}
		p.net.mu.Lock()
		p.kb.mute[rdmacm.Established] = false
		p.net.mu.Unlock()
		r.Established()
	}()
	_, err = r.Accept(t.Context(), cm.AcceptParams{QPParams: cm.QPParams{QP: newQP(2)}})
	require.NoError(t, err)
}

// TestEndsUnconfirmed: a peer that ends the connection has had our answer, even if its confirmation is lost.
func TestEndsUnconfirmed(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	p.kb.mute[rdmacm.Established] = true
	client := make(chan error, 1)
	go func() {
		c, err := p.dial(t.Context(), newQP(1))
		if err == nil {
			err = c.Disconnect(t.Context())
		}
		client <- err
	}()
	server := newQP(2)
	c, err := acceptOne(t.Context(), l, server)
	require.NoError(t, err)
	<-c.Done()
	require.ErrorIs(t, c.Err(), cm.ErrDisconnected)
	require.Equal(t, verbs.QPSRTS, server.State(), "left to its owner")
	require.NoError(t, c.Disconnect(t.Context()))
	require.NoError(t, <-client)
}

// TestRemoval: the adapter goes.
func TestRemoval(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	_, s := p.connect(t, l, newQP(1), newQP(2))
	p.net.mu.Lock()
	p.kb.ids[s.(*conn).id.handle].tell(s.(*conn).id.uid, rdmacm.DeviceRemoval, 0, nil)
	p.kb.ids[l.id.handle].tell(l.id.uid, rdmacm.DeviceRemoval, 0, nil)
	p.net.mu.Unlock()
	<-s.Done()
	require.ErrorIs(t, s.Err(), rdmacm.ErrDeviceRemoved)
	_, err := l.Accept(t.Context())
	require.ErrorIs(t, err, rdmacm.ErrDeviceRemoved)
	eventually(t, func() bool { return p.net.identifiers() == 1 }, "the client is left")
	require.NoError(t, l.Close())
}

// TestManagerEnds: everything that waits ends with the manager, or with the kernel's.
func TestManagerEnds(t *testing.T) {
	for _, name := range []string{"closed", "broken"} {
		t.Run(name, func(t *testing.T) {
			p := newFakePair(t)
			l := p.listen(t, 4)
			c, s := p.connect(t, l, newQP(1), newQP(2))
			accepted := make(chan error, 1)
			go func() {
				_, err := l.Accept(t.Context())
				accepted <- err
			}()
			want := cm.ErrClosed
			if name == "closed" {
				require.NoError(t, p.b.Close())
				<-c.Done()
				require.ErrorIs(t, c.Err(), cm.ErrDisconnected)
			} else {
				want = os.ErrClosed
				p.kb.end()
			}
			require.ErrorIs(t, <-accepted, want)
			<-s.Done()
			require.ErrorIs(t, s.Err(), want)
			require.NoError(t, s.Disconnect(t.Context()))
			_, err := p.b.Listen(netip.AddrPort{}, cm.ListenConfig{})
			require.ErrorIs(t, err, want)
			_, err = p.b.Dial(t.Context(), cm.DialParams{QPParams: cm.QPParams{QP: newQP(9)}, Remote: p.listenerOnHost})
			require.ErrorIs(t, err, want)
		})
	}
}

// TestCommandsFail: whichever command fails, the attempt does and leaves nothing.
func TestCommandsFail(t *testing.T) {
	for _, n := range []rdmacm.Number{rdmacm.NumCreateID, rdmacm.NumResolveAddr, rdmacm.NumResolveRoute, rdmacm.NumQuery, rdmacm.NumConnect, rdmacm.NumInitQPAttr, rdmacm.NumAccept} {
		t.Run(n.String(), func(t *testing.T) {
			p := newFakePair(t)
			l := p.listen(t, 4)
			p.ka.refuse[n] = syscall.EACCES
			if n >= rdmacm.NumConnect && n != rdmacm.NumQuery {
				go func() { _, _ = acceptOne(t.Context(), l, newQP(2)) }()
			}
			_, err := p.dial(t.Context(), newQP(1))
			require.ErrorIs(t, err, rdmacm.ErrCredentials)
			var failed *rdmacm.CommandError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, n.String(), failed.Command)
			eventually(t, func() bool {
				p.net.mu.Lock()
				defer p.net.mu.Unlock()
				return len(p.ka.ids) == 0
			}, "nothing is left")
		})
	}
	for _, n := range []rdmacm.Number{rdmacm.NumCreateID, rdmacm.NumBind, rdmacm.NumQuery, rdmacm.NumListen} {
		p := newFakePair(t)
		p.kb.refuse[n] = syscall.ENOMEM
		_, err := p.b.Listen(p.listenerOnHost, cm.ListenConfig{})
		require.ErrorIs(t, err, syscall.ENOMEM)
	}
}

// TestPartition: a path in another partition than the first of the table. The devices of this test have one.
func TestPartition(t *testing.T) {
	p := newFakePair(t)
	l := p.listen(t, 4)
	p.ka.pkeyIndex = 4
	go func() { _, _ = acceptOne(t.Context(), l, newQP(2)) }()
	_, err := p.dial(t.Context(), newQP(1))
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "P_Key index 4")
}

func TestArguments(t *testing.T) {
	p := newFakePair(t)
	dial := func(d cm.DialParams) error { _, err := p.a.Dial(t.Context(), d); return err }
	datagrams := newQP(1)
	datagrams.typ = verbs.QPTUC
	require.ErrorIs(t, dial(cm.DialParams{}), verbs.ErrInvalid)
	require.ErrorIs(t, dial(cm.DialParams{QPParams: cm.QPParams{QP: newQP(1)}}), verbs.ErrInvalid)
	require.ErrorIs(t, dial(cm.DialParams{QPParams: cm.QPParams{QP: datagrams}, Remote: p.listenerOnHost}), verbs.ErrNotSupported)
	require.ErrorIs(t, dial(cm.DialParams{
		QPParams: cm.QPParams{QP: newQP(1)}, Remote: p.listenerOnHost, PrivateData: make([]byte, cm.MaxDialPrivate+1),
	}), cm.ErrPrivateData)
	require.Error(t, dial(cm.DialParams{
		QPParams: cm.QPParams{QP: newQP(1)}, Remote: netip.MustParseAddrPort("[fe80::1%no-such-device]:1"),
	}))
}

// TestFailures: what events tell of errors.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		ev   event
		want error
	}{
		{event{Event: rdmacm.Event{Kind: rdmacm.AddrError, Status: -int32(syscall.EHOSTUNREACH)}}, syscall.EHOSTUNREACH},
		{event{Event: rdmacm.Event{Kind: rdmacm.RouteError, Status: -int32(syscall.ETIMEDOUT)}}, syscall.ETIMEDOUT},
		{event{Event: rdmacm.Event{Kind: rdmacm.Unreachable, Status: -int32(syscall.ETIMEDOUT)}}, cm.ErrTimeout},
		{event{Event: rdmacm.Event{Kind: rdmacm.Unreachable, Status: -int32(syscall.ENETUNREACH)}}, syscall.ENETUNREACH},
		{event{Event: rdmacm.Event{Kind: rdmacm.ConnectError, Status: -int32(syscall.ENOMEM)}}, syscall.ENOMEM},
		{event{Event: rdmacm.Event{Kind: rdmacm.Rejected, Status: 4}}, syscall.ETIMEDOUT},
		{event{Event: rdmacm.Event{Kind: rdmacm.Rejected, Status: 28}}, syscall.ECONNREFUSED},
		{event{Event: rdmacm.Event{Kind: rdmacm.Disconnected}}, cm.ErrDisconnected},
		{event{Event: rdmacm.Event{Kind: rdmacm.DeviceRemoval}}, syscall.ENODEV},
	} {
		require.ErrorIs(t, c.ev.failure(), c.want)
	}
	require.NoError(t, (&event{Event: rdmacm.Event{Kind: rdmacm.Established}}).failure())
	require.Equal(t, "ADDR_ERROR", (&event{Event: rdmacm.Event{Kind: rdmacm.AddrError, Status: 5}}).failure().Error())
}

// TestAbsent: this test runs on hosts without the device only.
func TestAbsent(t *testing.T) {
	if _, err := os.Stat(rdmacm.DevicePath); err == nil {
		t.Skip("the device is there")
	}
	_, err := New(fakeDevice{})
	require.ErrorIs(t, err, rdmacm.ErrAbsent)
}
