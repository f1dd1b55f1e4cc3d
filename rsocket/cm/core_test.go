package cm

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

const testService = ServiceID(0x01061d2f)

// side is a core in a test, with its address and a simple source of ids.
type side struct {
	*core
	addr netip.Addr
}

func newSide(addr netip.Addr, guid uint64, cfg Config) *side {
	cfg.CAGUID = guid
	next := uint32(guid) << 16
	newID := func() uint32 { next++; return next }
	return &side{newCore(cfg, newID, func() []netip.Addr { return []netip.Addr{addr} }), addr}
}

// reporter is what testing and rapid have in common.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
}

// world is two sides and the time.
type world struct {
	t    reporter
	now  time.Time
	a, b *side
}

func newWorld(t reporter) *world {
	cfg := Config{Objects: 100, TimeWait: 500 * time.Millisecond}.withDefaults(verbs.PortAttr{})
	return &world{t: t, now: time.Unix(1000, 0), a: newSide(addrA, 1, cfg), b: newSide(addrB, 2, cfg)}
}

func (w *world) other(s *side) *side {
	if s == w.a {
		return w.b
	}
	return w.a
}

// take empties what s wants to send.
func (w *world) take(s *side) []datagram {
	out := s.out
	s.out = nil
	return out
}

// deliver hands a datagram of s to the other side, over the wire format.
func (w *world) deliver(s *side, d datagram) {
	to := w.other(s)
	require.Equal(w.t, to.addr, d.to.remote)
	to.receive(w.now, route{0, s.addr}, Append(nil, d.tid, d.msg))
}

// exchange delivers until no side has a message to send, and returns what was said.
func (w *world) exchange() (said []AttrID) {
	for range 100 {
		for _, s := range []*side{w.a, w.b} {
			for _, d := range w.take(s) {
				said = append(said, d.msg.Attr())
				w.deliver(s, d)
			}
		}
		if len(w.a.out)+len(w.b.out) == 0 {
			return said
		}
	}
	require.Fail(w.t, "endless conversation", "%v", said)
	return nil
}

// pass lets time pass and everything due happen.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.a.expire(w.now)
	w.b.expire(w.now)
}

func (w *world) request(s *side, qpn uint32, change ...func(*REQ)) *conn {
	to := w.other(s).addr
	h := AddrHeader{Source: netip.AddrPortFrom(s.addr, 40000), Destination: to}
	req := &REQ{
		Service: testService, QPN: qpn, PSN: qpn + 1, RemoteTimeout: 20, LocalTimeout: 20, MaxCMRetries: 15, MTU: verbs.MTU1024,
		Primary: Path{LocalGID: verbs.GIDOf(s.addr), RemoteGID: verbs.GIDOf(to)}, PrivateData: append(h.Append(nil), "hello"...),
	}
	for _, f := range change {
		f(req)
	}
	x, err := s.dial(w.now, route{0, to}, req, h)
	require.NoError(w.t, err)
	return x
}

func (w *world) listen(s *side, backlog int) *listener {
	l, err := s.listen(listenKey{service: testService}, backlog)
	require.NoError(w.t, err)
	return l
}

// connected makes a connection from a to b.
func (w *world) connected() (*conn, *conn) {
	l := w.b.listeners[listenKey{service: testService}]
	if l == nil {
		l = w.listen(w.b, 4)
	}
	x := w.request(w.a, 0x11)
	w.exchange()
	y := l.take()
	require.NoError(w.t, y.accept(w.now, &REP{QPN: 0x22, PSN: 0x23}))
	w.exchange()
	require.NoError(w.t, x.ready(nil))
	w.exchange()
	require.Equal(w.t, stateEstablished, x.state)
	require.Equal(w.t, stateEstablished, y.state)
	return x, y
}

func (w *world) requireEmpty() {
	w.t.Helper()
	for _, s := range []*side{w.a, w.b} {
		require.Empty(w.t, s.conns)
		require.Empty(w.t, s.peers)
		require.Empty(w.t, s.qps)
		require.Zero(w.t, s.timers.Len())
	}
}

// Whatever is repeated is answered as it was.
func TestRepeated(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	req := w.take(w.a)[0]
	w.deliver(w.a, req)
	w.deliver(w.a, req)
	mra := w.take(w.b)
	require.Len(t, mra, 1)
	require.Equal(t, &MRA{LocalID: l.queue[0].id, RemoteID: x.id, ServiceTimeout: 24}, mra[0].msg)
	before := x.timer.At()
	w.deliver(w.b, mra[0])
	require.True(t, x.timer.At().After(before.Add(time.Minute)), "an MRA grants more time")

	y := l.take()
	require.NoError(t, y.accept(w.now, &REP{QPN: 0x22}))
	rep := w.take(w.b)[0]
	w.deliver(w.a, req)
	again := w.take(w.b)
	require.Equal(t, []datagram{rep}, again, "a repeated REQ gets the REP again")

	w.deliver(w.b, rep)
	w.deliver(w.b, rep)
	mra = w.take(w.a)
	require.Len(t, mra, 1)
	require.Equal(t, KindREP, mra[0].msg.(*MRA).Message)
	w.deliver(w.a, mra[0])
	require.NoError(t, x.ready([]byte("rtu")))
	rtu := w.take(w.a)
	w.deliver(w.b, rep)
	require.Equal(t, rtu, w.take(w.a), "a repeated REP gets the RTU again")
	w.deliver(w.a, rtu[0])
	w.deliver(w.a, rtu[0])
	require.Equal(t, stateEstablished, y.state)
	w.deliver(w.a, req)
	require.Empty(t, w.take(w.b), "a late REQ says nothing new")

	x.disconnect(w.now, ErrClosed)
	dreq := w.take(w.a)[0]
	w.deliver(w.a, dreq)
	drep := w.take(w.b)
	w.deliver(w.a, dreq)
	require.Equal(t, drep, w.take(w.b), "in TIMEWAIT")
	w.deliver(w.a, req)
	require.Equal(t, RejectStaleConn, w.take(w.b)[0].msg.(*REJ).Reason)
	w.pass(time.Second)
	w.deliver(w.a, dreq)
	again = w.take(w.b)
	require.Len(t, again, 1, "of a connection unknown")
	require.Equal(t, &DREP{LocalID: y.id, RemoteID: x.id}, again[0].msg)
	require.Equal(t, dreq.tid, again[0].tid)
	w.deliver(w.b, again[0])
	w.deliver(w.b, again[0])
	w.pass(time.Second)
	w.requireEmpty()
}

// The REQ is repeated, then given up with what the kernel sends.
func TestSilence(t *testing.T) {
	w := newWorld(t)
	x := w.request(w.a, 0x11)
	first := w.take(w.a)[0]
	for range 15 {
		w.pass(4800 * time.Millisecond)
		require.Empty(t, w.take(w.a))
		w.pass(50 * time.Millisecond)
		require.Equal(t, []datagram{first}, w.take(w.a))
	}
	w.pass(5 * time.Second)
	rej := w.take(w.a)
	require.Len(t, rej, 1)
	require.Equal(t, &REJ{
		LocalID: x.id, Message: KindOther, Reason: RejectTimeout, ARI: []byte{0, 0, 0, 0, 0, 0, 0, 1},
	}, rej[0].msg)
	require.ErrorIs(t, x.err, ErrTimeout)
	w.requireEmpty()
	require.EqualValues(t, 1, w.a.stats.Timeouts)
	require.EqualValues(t, 15, w.a.stats.Repeated)
}

// A peer that asks for more time again and again, and for as much as can be said, gets two minutes; then the rest of the
// repetitions.
func TestMRAsAreBounded(t *testing.T) {
	w := newWorld(t)
	x := w.request(w.a, 0x11)
	begin := w.now
	for x.err == nil {
		w.take(w.a)
		w.a.receive(w.now, route{0, addrB}, Append(nil, x.tid, &MRA{LocalID: 1, RemoteID: x.id, Message: KindREQ, ServiceTimeout: 31}))
		w.pass(time.Second)
		require.Less(t, w.now.Sub(begin), 5*time.Minute)
	}
	require.ErrorIs(t, x.err, ErrTimeout)
	require.Greater(t, w.now.Sub(begin), maxGrant)
	require.EqualValues(t, w.a.Retries, w.a.stats.Repeated)
	w.requireEmpty()
}

// A request that its sender gives up leaves the queue of the listener.
func TestWithdrawn(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	w.exchange()
	require.Len(t, l.queue, 1)
	x.abort(w.now, ErrClosed)
	require.Equal(t, []AttrID{AttrREJ}, w.exchange())
	require.Empty(t, l.queue)
	w.pass(time.Second)
	w.requireEmpty()
}

func TestDisconnectUnanswered(t *testing.T) {
	w := newWorld(t)
	x, y := w.connected()
	x.disconnect(w.now, ErrClosed)
	for range 16 {
		w.take(w.a)
		w.pass(5 * time.Second)
	}
	require.Equal(t, stateTimeWait, x.state)
	require.True(t, x.timedOut)
	w.pass(time.Second)
	require.Empty(t, w.a.conns)
	// The other side finds out when it disconnects.
	y.disconnect(w.now, ErrClosed)
	require.Equal(t, []AttrID{AttrDREQ, AttrDREP}, w.exchange())
	w.pass(time.Second)
	w.requireEmpty()
}

// A listener does not wait for an answer to an acceptance that came too late.
func TestAcceptedTooLate(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	w.exchange()
	y := l.take()
	require.NoError(t, y.accept(w.now, &REP{QPN: 0x22}))
	rep := w.take(w.b)[0]
	x.abort(w.now, ErrClosed)
	w.take(w.a) // lost
	w.deliver(w.b, rep)
	w.exchange()
	var rejected *RejectError
	require.ErrorAs(t, y.err, &rejected)
	require.Equal(t, RejectInvalidCommID, rejected.Reason)
	require.ErrorIs(t, y.accept(w.now, &REP{}), rejected)
	w.pass(time.Second)
	w.requireEmpty()
}

func TestReject(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	req := w.take(w.a)[0]
	w.deliver(w.a, req)
	y := l.take()
	require.NoError(t, y.refuse(RejectConsumerDefined, []byte{1}, []byte("no")))
	rej := w.take(w.b)[0]
	require.Empty(t, w.b.conns)
	w.deliver(w.a, req)
	again := l.take()
	require.NoError(t, again.refuse(RejectConsumerDefined, []byte{1}, []byte("no")))
	require.Equal(t, []datagram{rej}, w.take(w.b), "the first may be lost")
	w.deliver(w.b, rej)
	var rejected *RejectError
	require.ErrorAs(t, x.err, &rejected)
	require.Equal(t, RejectConsumerDefined, rejected.Reason)
	require.Equal(t, []byte{1}, rejected.ARI)
	require.Equal(t, "no", string(rejected.PrivateData[:2]))
	require.ErrorIs(t, y.refuse(RejectNoQP, nil, nil), ErrClosed)
	w.pass(10 * time.Second)
	w.requireEmpty()
}

// What no listener sees is refused for a reason.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*REQ)
		want   RejectReason
	}{
		"service":     {func(m *REQ) { m.Service++ }, RejectInvalidServiceID},
		"transport":   {func(m *REQ) { m.Transport = 2 }, RejectInvalidTransportType},
		"xrc":         {func(m *REQ) { m.ExtTransport = 1 }, RejectInvalidTransportType},
		"mtu":         {func(m *REQ) { m.MTU = 0 }, RejectInvalidMTU},
		"header":      {func(m *REQ) { m.PrivateData = nil }, RejectUnsupported},
		"source":      {func(m *REQ) { m.PrivateData[19]++ }, RejectInvalidGID},
		"destination": {func(m *REQ) { m.PrivateData[35]++ }, RejectInvalidGID},
		"local gid":   {func(m *REQ) { m.Primary.LocalGID[15]++ }, RejectInvalidGID},
		"remote gid":  {func(m *REQ) { m.Primary.RemoteGID[15]++ }, RejectInvalidGID},
		"backlog":     {func(*REQ) {}, RejectNoResources},
	} {
		w := newWorld(t)
		l := w.listen(w.b, 1)
		if name == "backlog" {
			w.request(w.a, 0x10)
			w.exchange()
		}
		x := w.request(w.a, 0x11, c.change)
		require.Equal(t, []AttrID{AttrREQ, AttrREJ}, w.exchange(), name)
		var rejected *RejectError
		require.ErrorAs(t, x.err, &rejected)
		require.Equal(t, c.want, rejected.Reason, name)
		require.Empty(t, slices.DeleteFunc(l.queue, func(*conn) bool { return name == "backlog" }))
	}
}

func TestObjectsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.listen(w.b, 1000)
	w.b.Objects = 3
	w.a.Objects = 5
	for qpn := range uint32(5) {
		w.request(w.a, qpn)
	}
	_, err := w.a.dial(w.now, route{0, addrB}, &REQ{}, AddrHeader{})
	require.ErrorIs(t, err, ErrNoResources)
	w.exchange()
	require.Len(t, w.b.conns, 3)
	require.Len(t, w.a.conns, 3, "two were refused")
	require.True(t, w.b.full())
}

// Requests that the application refuses take no room from its own attempts, nor from other requests.
func TestRefusedRequestsLeaveRoom(t *testing.T) {
	w := newWorld(t)
	w.a.Objects = 1000
	l := w.listen(w.b, 4)
	for qpn := range uint32(2 * w.b.Objects) {
		w.request(w.a, qpn+1)
		w.exchange()
		require.NoError(t, l.take().refuse(RejectNoResources, nil, nil))
		w.exchange()
	}
	w.requireEmpty()
	w.request(w.b, 1)
}

// The passive side lost its memory, and offers a queue pair that we believe
// connected to another of ours.
func TestStaleREP(t *testing.T) {
	w := newWorld(t)
	old, _ := w.connected()
	w.b.core = newSide(addrB, 2, w.b.Config).core
	w.b.newID = func() uint32 { return 0x777 }
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x12)
	w.exchange()
	y := l.take()
	require.NoError(t, y.accept(w.now, &REP{QPN: 0x22}))
	w.exchange()
	require.Equal(t, stateClosed, x.state)
	require.Equal(t, stateTimeWait, y.state)
	require.Equal(t, stateEstablished, old.state)
	require.EqualValues(t, 1, w.a.stats.Stale)
}

// The RTU is lost, and the connection is over already.
func TestDisconnectInsteadOfRTU(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	w.exchange()
	y := l.take()
	require.NoError(t, y.accept(w.now, &REP{QPN: 0x22}))
	w.exchange()
	require.NoError(t, x.ready(nil))
	w.take(w.a)
	x.disconnect(w.now, ErrClosed)
	w.exchange()
	require.True(t, y.complete)
	require.ErrorIs(t, y.err, ErrDisconnected)
	w.pass(time.Second)
	w.requireEmpty()
}

// A host without a connection can say what it wants.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	x, y := w.connected()
	stranger := route{0, netip.MustParseAddr("10.0.0.3")}
	for _, m := range []Message{
		&DREQ{LocalID: x.id, RemoteID: y.id, RemoteQPN: 0x22},
		&DREP{LocalID: x.id, RemoteID: y.id},
		&REJ{LocalID: x.id, RemoteID: y.id, Message: KindOther, Reason: RejectConsumerDefined},
		&REJ{LocalID: x.id, Message: KindOther, Reason: RejectTimeout, ARI: []byte{0, 0, 0, 0, 0, 0, 0, 1}},
		&MRA{LocalID: x.id, RemoteID: y.id},
		&RTU{LocalID: x.id, RemoteID: y.id},
		&REP{LocalID: x.id, RemoteID: y.id},
	} {
		w.b.receive(w.now, stranger, Append(nil, 1, m))
	}
	// And the peer itself cannot name another queue pair, or another id.
	w.b.receive(w.now, y.route, Append(nil, 1, &DREQ{LocalID: x.id, RemoteID: y.id, RemoteQPN: 0x23}))
	w.b.receive(w.now, y.route, Append(nil, 1, &DREQ{LocalID: x.id + 1, RemoteID: y.id, RemoteQPN: 0x22}))
	w.b.receive(w.now, y.route, Append(nil, 1, &REJ{LocalID: x.id + 1, RemoteID: y.id, Message: KindOther, Reason: RejectTimeout}))
	require.Equal(t, stateEstablished, y.state)
	require.NoError(t, y.err)
	require.EqualValues(t, 10, w.b.stats.Unknown)
	w.b.receive(w.now, stranger, []byte("noise"))
	require.EqualValues(t, 1, w.b.stats.Malformed)
}

// A peer that does not know the connection any more says so.
func TestRejectedWhenEstablished(t *testing.T) {
	w := newWorld(t)
	x, y := w.connected()
	w.b.receive(w.now, y.route, Append(nil, 1, &REJ{LocalID: x.id, RemoteID: y.id, Message: KindOther, Reason: RejectInvalidCommID}))
	var rejected *RejectError
	require.ErrorAs(t, y.err, &rejected)
	require.Equal(t, stateTimeWait, y.state)
}

// An application that does not answer within the time of the MRAs is too late.
func TestNeverAccepted(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 1)
	x := w.request(w.a, 0x11)
	w.exchange()
	y := l.queue[0]
	w.pass(69 * time.Second)
	w.take(w.a) // the repeated REQ
	w.exchange()
	require.Empty(t, l.queue)
	require.ErrorIs(t, y.accept(w.now, &REP{}), ErrTimeout)
	require.Equal(t, stateClosed, x.state)
}

func TestListeners(t *testing.T) {
	w := newWorld(t)
	l := w.listen(w.b, 4)
	_, err := w.b.listen(l.key, 1)
	require.ErrorIs(t, err, ErrAddrInUse)
	at, err := w.b.listen(listenKey{service: testService, addr: addrB}, 4)
	require.NoError(t, err)
	x := w.request(w.a, 1)
	w.exchange()
	require.Len(t, at.queue, 1, "the more specific listener has it")
	require.Empty(t, l.queue)
	w.b.unlisten(at)
	w.exchange()
	require.Equal(t, stateClosed, x.state)
	w.request(w.a, 2)
	w.request(w.a, 3)
	w.exchange()
	require.EqualValues(t, 2, l.take().req.QPN)
	require.EqualValues(t, 3, l.take().req.QPN)
	require.Nil(t, l.take())
}

// There is no datagram service, and who looks for one need not wait.
func TestNoDatagramService(t *testing.T) {
	w := newWorld(t)
	w.listen(w.b, 1)
	req := &SIDRREQ{RequestID: 7, PKey: 0xffff, Service: testService}
	w.deliver(w.a, datagram{route{0, addrB}, 9, req})
	rep := w.take(w.b)
	require.Equal(t, []datagram{{route{0, addrA}, 9, &SIDRREP{RequestID: 7, Status: SIDRUnsupported, Service: testService}}}, rep)
	w.deliver(w.b, rep[0])
	w.requireEmpty()
}

// A connection of the kernel's rstream, as captured, against our passive side.
func TestAgainstCapture(t *testing.T) {
	all := captures(t)
	w := newWorld(t)
	server := netip.MustParseAddr("10.77.0.2")
	client := route{0, netip.MustParseAddr("10.77.0.3")}
	s := newSide(server, 0x505400fffe770002, w.a.Config)
	ids := []uint32{0x61b4d3cf}
	s.newID = func() uint32 { id := ids[0]; return id }
	l, err := s.listen(listenKey{service: ServiceOf(PortSpaceTCP, 7471), addr: server}, 1)
	require.NoError(t, err)
	s.receive(w.now, client, all["rstream-rxe-3"])
	y := l.take()
	_, m, err := Parse(all["rstream-rxe-4"])
	require.NoError(t, err)
	rep := *m.(*REP)
	rep.LocalID, rep.RemoteID, rep.CAGUID = 0, 0, 0
	require.NoError(t, y.accept(w.now, &rep))
	require.Len(t, s.out, 1)
	require.Equal(t, hex.EncodeToString(all["rstream-rxe-4"]), hex.EncodeToString(Append(nil, s.out[0].tid, s.out[0].msg)))
	s.receive(w.now, client, all["rstream-rxe-5"])
	require.Equal(t, stateEstablished, y.state)
	y.disconnect(w.now, ErrClosed)
	require.Equal(t, hex.EncodeToString(all["rstream-rxe-64"][16:]), hex.EncodeToString(Append(nil, s.out[1].tid, s.out[1].msg)[16:]))
	s.receive(w.now, client, all["rstream-rxe-65"])
	require.Equal(t, stateTimeWait, y.state)
}
