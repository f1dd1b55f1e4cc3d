package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// host is a device with its manager and what queue pairs need.
type host struct {
	t    testing.TB
	addr netip.Addr
	dev  *soft.Device
	loop *loop.Loop
	m    *Manager
	pd   verbs.PD
	cq   verbs.CQ
	mr   verbs.MR

	mu   sync.Mutex
	ends []func()
}

// testPort is the UDP port of the devices of one test, unlike those of others
// on the machine.
func testPort() uint16 { return uint16(20000 + randomID()%12000) }

func openHost(t testing.TB, port uint16, addr string, cfg Config) *host {
	h := &host{t: t, addr: netip.MustParseAddr(addr)}
	var err error
	h.dev, err = soft.Open(soft.Config{Addrs: []netip.Addr{h.addr}, UDPPort: port})
	require.NoError(t, err)
	h.loop, err = loop.New(h.dev, 0, nil)
	require.NoError(t, err)
	cfg.Do = h.loop.Do
	h.m, err = New(h.dev, cfg)
	require.NoError(t, err)
	h.pd, err = h.dev.AllocPD()
	require.NoError(t, err)
	h.cq, err = h.dev.CreateCQ(verbs.CQAttr{Depth: 1024})
	require.NoError(t, err)
	h.mr, err = h.pd.AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(h.close)
	return h
}

func (h *host) close() {
	if h.dev == nil {
		return
	}
	h.endQPs()
	require.NoError(h.t, h.loop.Do(func() { require.NoError(h.t, h.cq.Close()) }))
	require.NoError(h.t, h.m.Close())
	require.NoError(h.t, h.loop.Close())
	require.NoError(h.t, h.mr.Close())
	require.NoError(h.t, h.pd.Close())
	require.NoError(h.t, h.dev.Close())
	h.dev = nil
}

// endQPs closes the queue pairs.
func (h *host) endQPs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, end := range h.ends {
		end()
	}
	h.ends = nil
}

func (h *host) qp(kind verbs.QPType) verbs.QP {
	qp, err := h.pd.CreateQP(&verbs.QPInitAttr{
		Type: kind, SendCQ: h.cq, RecvCQ: h.cq, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(h.t, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, func() { require.NoError(h.t, h.loop.Do(func() { require.NoError(h.t, qp.Close()) })) })
	return qp
}

func (h *host) params(kind verbs.QPType) QPParams { return QPParams{QP: h.qp(kind), Do: h.loop.Do} }

func (h *host) dial(ctx context.Context, to netip.AddrPort) (Conn, error) {
	return h.m.Dial(ctx, DialParams{QPParams: h.params(verbs.QPTRC), Remote: to, PrivateData: []byte("hello")})
}

func (h *host) listen(cfg ListenConfig) Listener {
	l, err := h.m.Listen(netip.AddrPortFrom(h.addr, 0), cfg)
	require.NoError(h.t, err)
	return l
}

// accepted is what a server made of a request.
type accepted struct {
	conn Conn
	err  error
}

func (h *host) accept(l Listener, kind verbs.QPType) <-chan accepted {
	ch := make(chan accepted, 1)
	go func() {
		r, err := l.Accept(h.ctx())
		if err != nil {
			ch <- accepted{err: err}
			return
		}
		conn, err := r.Accept(h.ctx(), AcceptParams{QPParams: h.params(kind), PrivateData: []byte("welcome")})
		ch <- accepted{conn, err}
	}()
	return ch
}

func (h *host) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	h.t.Cleanup(cancel)
	return ctx
}

// in runs f in the loop.
func (h *host) in(f func()) { require.NoError(h.t, h.loop.Do(f)) }

// completion waits for one.
func (h *host) completion(op verbs.WCOpcode) (wc verbs.WC) {
	require.Eventually(h.t, func() bool {
		found := false
		h.in(func() {
			var wcs [1]verbs.WC
			n, err := h.cq.Poll(wcs[:])
			require.NoError(h.t, err)
			found = n == 1 && wcs[0].Opcode == op
			wc = wcs[0]
		})
		return found
	}, 30*time.Second, time.Millisecond)
	require.Equal(h.t, verbs.WCSuccess, wc.Status)
	return wc
}

func (h *host) sge(n uint32) []verbs.SGE {
	return []verbs.SGE{{Addr: h.mr.Addr(), Length: n, LKey: h.mr.LKey()}}
}

// say sends from one connection to the other.
func say(from *host, a Conn, to *host, b Conn) {
	to.in(func() { require.NoError(to.t, b.QP().PostRecv(&verbs.RecvWR{SGList: to.sge(64)})) })
	from.in(func() {
		copy(from.mr.Bytes(), "data")
		require.NoError(from.t, a.QP().PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: from.sge(4)}))
	})
	wc := to.completion(verbs.WCRecv)
	require.EqualValues(to.t, 4, wc.ByteLen)
	from.completion(verbs.WCSend)
}

func TestConnections(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b string // the same: a connection to itself
		kind verbs.QPType
	}{
		{"ipv4", "127.0.0.2", "127.0.0.3", verbs.QPTRC},
		{"unreliable", "127.0.0.2", "127.0.0.3", verbs.QPTUC},
		{"ipv6, to itself", "::1", "::1", verbs.QPTRC},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := testPort()
			a := openHost(t, port, c.a, Config{})
			b := a
			if c.a != c.b {
				b = openHost(t, port, c.b, Config{})
			}
			l := b.listen(ListenConfig{})
			served := b.accept(l, c.kind)
			x, err := a.m.Dial(a.ctx(), DialParams{
				QPParams: a.params(c.kind), Remote: l.Addr(), PrivateData: []byte("hello"),
			})
			require.NoError(t, err)
			y := <-served
			require.NoError(t, y.err)
			require.Equal(t, "welcome", string(x.PrivateData()[:7]))
			require.Equal(t, "hello", string(y.conn.PrivateData()[:5]))
			require.Equal(t, l.Addr(), x.RemoteAddr())
			require.Equal(t, l.Addr(), y.conn.LocalAddr())
			require.Equal(t, x.LocalAddr(), y.conn.RemoteAddr())
			require.Equal(t, a.addr, x.LocalAddr().Addr())
			require.Equal(t, y.conn.QP().Num(), x.Attr().DestQPNum)
			require.Equal(t, x.Attr().RQPSN, y.conn.Attr().SQPSN)
			require.Equal(t, x.Attr().SQPSN, y.conn.Attr().RQPSN)
			require.Equal(t, x.(*connection).x.req.PSN, x.Attr().RQPSN, "what we say is what we expect (cm_init_qp_rtr_attr of the kernel)")
			require.Equal(t, y.conn.(*connection).x.rep.PSN, y.conn.Attr().RQPSN)
			require.EqualValues(t, 17, x.Attr().Timeout)
			require.EqualValues(t, 12, x.Attr().MinRNRTimer)

			say(a, x, b, y.conn)
			require.NoError(t, x.Err())
			require.NoError(t, x.Disconnect(a.ctx()))
			<-y.conn.Done()
			require.ErrorIs(t, y.conn.Err(), ErrDisconnected)
			require.ErrorIs(t, y.conn.Err(), syscall.ECONNRESET)
			require.ErrorIs(t, x.Err(), ErrClosed)
			require.NotEqual(t, verbs.QPSErr, y.conn.QP().State())
			require.NoError(t, y.conn.Disconnect(b.ctx()))
			b.in(func() { require.Equal(t, verbs.QPSErr, y.conn.QP().State()) })
			require.NoError(t, x.Disconnect(a.ctx()))
			require.EqualValues(t, 0, a.m.Stats().Dropped+a.m.Stats().Malformed)
		})
	}
}

// pair is two hosts with IPv4 addresses.
func pair(t testing.TB, cfg Config) (*host, *host) {
	port := testPort()
	return openHost(t, port, "127.0.0.2", cfg), openHost(t, port, "127.0.0.3", cfg)
}

func TestRefusals(t *testing.T) {
	a, b := pair(t, Config{})
	var rejected *RejectError
	_, err := a.dial(a.ctx(), netip.AddrPortFrom(b.addr, 7471))
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, RejectInvalidServiceID, rejected.Reason)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	l := b.listen(ListenConfig{Backlog: 1})
	first := make(chan error, 1)
	go func() { _, err := a.dial(a.ctx(), l.Addr()); first <- err }()
	require.Eventually(t, func() bool { return b.m.Stats().Connections == 1 }, 30*time.Second, time.Millisecond)
	_, err = a.dial(a.ctx(), l.Addr())
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, RejectNoResources, rejected.Reason)

	r, err := l.Accept(b.ctx())
	require.NoError(t, err)
	_, err = r.Accept(b.ctx(), AcceptParams{QPParams: b.params(verbs.QPTUC)})
	require.ErrorIs(t, err, verbs.ErrInvalid, "not the transport that was asked for")
	require.NoError(t, r.Reject(RejectConsumerDefined, []byte("no")))
	require.Zero(t, b.m.Stats().Connections)
	require.ErrorIs(t, r.Reject(RejectNoQP, nil), ErrClosed)
	_, err = r.Accept(b.ctx(), AcceptParams{QPParams: b.params(verbs.QPTRC)})
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorAs(t, <-first, &rejected)
	require.Equal(t, RejectConsumerDefined, rejected.Reason)
	require.Equal(t, "no", string(rejected.PrivateData[:2]))

	// The listener goes, and refuses the requests that were not taken.
	go func() { _, err := a.dial(a.ctx(), l.Addr()); first <- err }()
	require.Eventually(t, func() bool { return b.m.Stats().Connections == 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	require.ErrorAs(t, <-first, &rejected)
	require.Equal(t, RejectInvalidServiceID, rejected.Reason)
	_, err = l.Accept(b.ctx())
	require.ErrorIs(t, err, ErrClosed)
}

// A queue pair that cannot be connected ends the attempt for both.
func TestQueuePairFails(t *testing.T) {
	a, b := pair(t, Config{})
	l := b.listen(ListenConfig{})
	broken := errors.New("broken")
	fails := func(func()) error { return broken }
	result := make(chan error, 1)
	go func() { _, err := a.dial(a.ctx(), l.Addr()); result <- err }()
	r, err := l.Accept(b.ctx())
	require.NoError(t, err)
	p := b.params(verbs.QPTRC)
	p.Do = fails
	_, err = r.Accept(b.ctx(), AcceptParams{QPParams: p})
	require.ErrorIs(t, err, broken)
	var rejected *RejectError
	require.ErrorAs(t, <-result, &rejected)
	require.Equal(t, RejectConsumerDefined, rejected.Reason)

	p = a.params(verbs.QPTRC)
	p.Do = fails
	go func() {
		_, err := a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: l.Addr()})
		result <- err
	}()
	y := <-b.accept(l, verbs.QPTRC)
	require.ErrorIs(t, <-result, broken)
	require.ErrorAs(t, y.err, &rejected)
	require.Equal(t, RejectConsumerDefined, rejected.Reason)
}

// The confirmation does not come, data does.
func TestEstablished(t *testing.T) {
	a, b := pair(t, Config{})
	l := b.listen(ListenConfig{})
	dialing, connected := make(chan struct{}), make(chan struct{})
	p := a.params(verbs.QPTRC)
	p.Do = func(f func()) error {
		close(dialing)
		<-connected
		return a.loop.Do(f)
	}
	result := make(chan error, 1)
	go func() {
		_, err := a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: l.Addr()})
		result <- err
	}()
	r, err := l.Accept(b.ctx())
	require.NoError(t, err)
	served := make(chan accepted, 1)
	go func() {
		conn, err := r.Accept(b.ctx(), AcceptParams{QPParams: b.params(verbs.QPTRC)})
		served <- accepted{conn, err}
	}()
	<-dialing
	select {
	case <-served:
		require.Fail(t, "accepted without a confirmation")
	case <-time.After(20 * time.Millisecond):
	}
	b.in(r.Established)
	y := <-served
	require.NoError(t, y.err)
	require.NoError(t, y.conn.Err())
	close(connected)
	require.NoError(t, <-result)
}

// A caller that stops waiting ends its attempt.
func TestCancelled(t *testing.T) {
	a, b := pair(t, Config{})
	l := b.listen(ListenConfig{})
	ctx, cancel := context.WithCancelCause(context.Background())
	result := make(chan error, 1)
	go func() { _, err := a.dial(ctx, l.Addr()); result <- err }()
	r, err := l.Accept(b.ctx())
	require.NoError(t, err)
	why := errors.New("changed my mind")
	cancel(why)
	require.ErrorIs(t, <-result, why)
	require.Eventually(t, func() bool { return b.m.Stats().Connections == 0 }, 30*time.Second, time.Millisecond)
	_, err = r.Accept(b.ctx(), AcceptParams{QPParams: b.params(verbs.QPTRC)})
	require.ErrorIs(t, err, syscall.ETIMEDOUT)

	ctx, cancel = context.WithCancelCause(context.Background())
	cancel(why)
	_, err = l.Accept(ctx)
	require.ErrorIs(t, err, why)
}

// No host is there: the times and retries of the configuration hold.
func TestNobodyThere(t *testing.T) {
	a := openHost(t, testPort(), "127.0.0.2", Config{ResponseTimeout: 10, PacketLifetime: 10, Retries: 3})
	begin := time.Now()
	_, err := a.dial(a.ctx(), netip.MustParseAddrPort("127.0.0.9:1"))
	require.ErrorIs(t, err, ErrTimeout)
	require.GreaterOrEqual(t, time.Since(begin), 4*3*4194*time.Microsecond)
	require.EqualValues(t, 3, a.m.Stats().Repeated)
}

// Close ends whatever waits, and tells the peers of connections.
func TestClose(t *testing.T) {
	a, b := pair(t, Config{TimeWait: time.Millisecond})
	l := b.listen(ListenConfig{})
	served := b.accept(l, verbs.QPTRC)
	x, err := a.dial(a.ctx(), l.Addr())
	require.NoError(t, err)
	y := <-served
	require.NoError(t, y.err)

	results := make(chan error, 2)
	al := a.listen(ListenConfig{})
	nobody := netip.MustParseAddrPort("127.0.0.9:1")
	p := a.params(verbs.QPTRC)
	go func() { _, err := a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: nobody}); results <- err }()
	go func() { _, err := al.Accept(a.ctx()); results <- err }()
	require.Eventually(t, func() bool { return a.m.Stats().Connections == 2 }, 30*time.Second, time.Millisecond)
	// The queue pairs are their owner's, which closes them while there is a loop.
	a.endQPs()
	a.in(func() { require.NoError(t, a.cq.Close()) })
	require.NoError(t, a.m.Close())
	for range 2 {
		require.ErrorIs(t, <-results, ErrClosed)
	}
	<-x.Done()
	require.ErrorIs(t, x.Err(), ErrClosed)
	<-y.conn.Done()
	require.ErrorIs(t, y.conn.Err(), ErrDisconnected)
	require.NoError(t, x.Disconnect(a.ctx()))
	_, err = a.dial0(nobody)
	require.ErrorIs(t, err, ErrClosed)
	_, err = a.m.Listen(netip.AddrPort{}, ListenConfig{})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, a.m.Close())
	require.NoError(t, a.loop.Close())
	require.NoError(t, a.mr.Close())
	require.NoError(t, a.pd.Close())
	require.NoError(t, a.dev.Close())
	a.dev = nil
}

// dial0 dials with a queue pair that stays idle.
func (h *host) dial0(to netip.AddrPort) (Conn, error) {
	return h.m.Dial(h.ctx(), DialParams{QPParams: QPParams{QP: idleQP{}}, Remote: to})
}

type idleQP struct{ verbs.QP }

func (idleQP) Type() verbs.QPType { return verbs.QPTRC }
func (idleQP) Num() uint32        { return 0x11 }

// Our REQ is the one that the kernel sends for rstream, but for the flow label:
// our queue pairs have none.
func TestRequestAsTheKernels(t *testing.T) {
	_, want, err := Parse(captures(t)["rstream-rxe-3"])
	require.NoError(t, err)
	cfg := Config{}.withDefaults(verbs.PortAttr{})
	p := &DialParams{
		QPParams: QPParams{QP: idleQP{}}.WithDefaults(verbs.DeviceAttr{}), PortSpace: PortSpaceTCP,
		Remote: netip.MustParseAddrPort("10.77.0.2:7471"), PrivateData: (*private(want))[AddrHeaderSize:],
	}
	got, _ := cfg.request(p, netip.MustParseAddrPort("10.77.0.3:37516"), p.Remote.Addr(), verbs.MTU1024, 0x7763b7)
	got.LocalID, got.CAGUID, got.Primary.FlowLabel = 0x158087c2, 0x505400fffe770003, 0x1dc23
	require.Equal(t, want, got)
}

// A host that lost its memory calls again from what looks like the same queue
// pair: its peer drops the old connection and takes the new one.
func TestRestart(t *testing.T) {
	port := testPort()
	cfg := Config{TimeWait: 50 * time.Millisecond}
	b := openHost(t, port, "127.0.0.3", cfg)
	l := b.listen(ListenConfig{})
	a := openHost(t, port, "127.0.0.2", cfg)
	served := b.accept(l, verbs.QPTRC)
	x, err := a.dial(a.ctx(), l.Addr())
	require.NoError(t, err)
	old := <-served
	require.NoError(t, old.err)
	qpn := x.QP().Num()
	a.m.mu.Lock()
	for _, c := range a.m.core.conns { // its manager knows nothing any more
		c.forget()
	}
	a.m.mu.Unlock()

	served = b.accept(l, verbs.QPTRC)
	again, err := a.m.Dial(a.ctx(), DialParams{QPParams: QPParams{QP: renumbered{a.qp(verbs.QPTRC), qpn}, Do: a.loop.Do}, Remote: l.Addr()})
	require.NoError(t, err)
	y := <-served
	require.NoError(t, y.err)
	require.Equal(t, qpn, y.conn.Attr().DestQPNum)
	<-old.conn.Done()
	require.ErrorIs(t, old.conn.Err(), ErrDisconnected)
	require.EqualValues(t, 1, b.m.Stats().Stale)
	require.NoError(t, again.Disconnect(a.ctx()))
}

// renumbered is a queue pair with another's number.
type renumbered struct {
	verbs.QP
	num uint32
}

func (r renumbered) Num() uint32 { return r.num }

func TestManyAtOnce(t *testing.T) {
	a, b := pair(t, Config{})
	l := b.listen(ListenConfig{})
	const many = 40
	var wg sync.WaitGroup
	params := func(h *host) (ps []QPParams) {
		for range many {
			ps = append(ps, h.params(verbs.QPTRC))
		}
		return ps
	}
	pa, pb := params(a), params(b)
	errs := make(chan error, 2*many)
	for i := range many {
		wg.Go(func() {
			x, err := a.m.Dial(a.ctx(), DialParams{QPParams: pa[i], Remote: l.Addr()})
			if err == nil {
				err = x.Disconnect(a.ctx())
			}
			errs <- err
		})
		wg.Go(func() {
			r, err := l.Accept(b.ctx())
			if err == nil {
				var y Conn
				if y, err = r.Accept(b.ctx(), AcceptParams{QPParams: pb[i]}); err == nil {
					<-y.Done()
					err = y.Disconnect(b.ctx())
				}
			}
			errs <- err
		})
	}
	wg.Wait()
	for range 2 * many {
		require.NoError(t, <-errs)
	}
	// Messages may have been repeated: on a busy machine an answer takes longer than the response time-out.
	require.EqualValues(t, many, b.m.Stats().EstablishedEver)
}

func TestParameters(t *testing.T) {
	a := openHost(t, testPort(), "127.0.0.2", Config{})
	to := netip.MustParseAddrPort("127.0.0.3:1")
	_, err := a.m.Dial(a.ctx(), DialParams{Remote: to})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = a.m.Dial(a.ctx(), DialParams{QPParams: a.params(verbs.QPTUD), Remote: to})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	p := a.params(verbs.QPTRC)
	_, err = a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: to, PrivateData: make([]byte, MaxDialPrivate+1)})
	require.ErrorIs(t, err, ErrPrivateData)
	for _, local := range []string{"127.0.0.4:0", "[::1]:0"} {
		_, err = a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: to, Local: netip.MustParseAddrPort(local)})
		require.ErrorIs(t, err, ErrAddrNotAvail, local)
		_, err = a.m.Listen(netip.MustParseAddrPort(local), ListenConfig{})
		require.ErrorIs(t, err, ErrAddrNotAvail, local)
	}
	_, err = a.m.Dial(a.ctx(), DialParams{QPParams: p, Remote: netip.MustParseAddrPort("[::1]:1")})
	require.ErrorIs(t, err, ErrAddrNotAvail)

	l := a.listen(ListenConfig{})
	require.NotZero(t, l.Addr().Port())
	_, err = a.m.Listen(l.Addr(), ListenConfig{})
	require.ErrorIs(t, err, ErrAddrInUse)
	_, err = New(a.dev, Config{Do: a.loop.Do})
	require.ErrorIs(t, err, verbs.ErrBusy, "a device has one manager")
}

func TestConfig(t *testing.T) {
	require.NoError(t, Config{Do: func(func()) error { return nil }}.Validate())
	err := Config{Vector: -1, Objects: -1, ResponseTimeout: 32, PacketLifetime: 31, ServiceTimeout: 32, Retries: 16, TimeWait: -1}.Validate()
	require.ErrorIs(t, err, verbs.ErrInvalid)
	for _, field := range []string{"loop missing", "vector", "objects", "response timeout", "packet lifetime", "service timeout", "retries", "time wait"} {
		require.ErrorContains(t, err, field)
	}
	_, err = New(nil, Config{Vector: -1})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	gid := func(a string) verbs.PortAttr {
		return verbs.PortAttr{GIDs: []verbs.GIDEntry{{GID: verbs.GIDOf(netip.MustParseAddr(a))}}, UDPPort: 4791}
	}
	require.Equal(t, guidOf(gid("10.0.0.1")), guidOf(gid("10.0.0.1")))
	require.NotEqual(t, guidOf(gid("10.0.0.1")), guidOf(gid("10.0.0.2")))
	require.NotEqual(t, guidOf(gid("fd77::1")), guidOf(gid("fd78::1")))
}

func TestAckTimeout(t *testing.T) {
	for _, c := range []struct{ delay, lifetime, want uint8 }{
		{15, 16, 17}, {16, 16, 18}, {17, 16, 18}, {18, 16, 19}, {20, 16, 20}, {0, 16, 17}, {31, 30, 31},
	} {
		require.Equal(t, c.want, ackTimeout(c.delay, c.lifetime), fmt.Sprint(c))
	}
}

// The device takes queue pair 1 away: everything ends, nothing hangs.
func TestQueuePairOneFails(t *testing.T) {
	a := openHost(t, testPort(), "127.0.0.2", Config{})
	l := a.listen(ListenConfig{})
	a.in(func() {
		require.NoError(t, a.m.gsi.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	})
	_, err := l.Accept(a.ctx())
	require.ErrorIs(t, err, ErrClosed)
	_, err = a.dial(a.ctx(), l.Addr())
	require.ErrorIs(t, err, ErrClosed)
}
