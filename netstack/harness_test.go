package netstack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/refs"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/packet"
)

func TestMain(m *testing.M) {
	log.SetTarget(&log.Writer{Next: io.Discard})
	refs.SetLeakMode(refs.LeaksPanic)
	// Those that are parallel wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		refs.DoLeakCheck() // after the last goroutine, which may hold a packet
	}
	os.Exit(code)
}

const (
	testMTU   = 1500
	testNonce = 0xbeef
	testPort  = 7000
)

var (
	client4 = netip.MustParseAddr("10.0.0.1")
	server4 = netip.MustParseAddr("10.0.0.2")
	client6 = netip.MustParseAddr("fd00::1")
	server6 = netip.MustParseAddr("fd00::2")
)

// recorder is a Handler that takes notes.
type recorder struct {
	refuse   bool
	rtt      time.Duration  // of proofs; 0: provedRTT
	steered  func(SYN) bool // whether the program has answered the SYN of a proof; nil: it has
	onSYNACK func(SYNACK)

	mu          sync.Mutex
	offered     []SYN
	proved      []SYN
	bare        []SYN
	synacks     []SYNACK
	notAccepted []error
	accepted    chan *Conn
}

func newRecorder() *recorder { return &recorder{accepted: make(chan *Conn, 100)} }

func (r *recorder) OfferedSYN(s SYN) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offered = append(r.offered, s)
}

func (r *recorder) Proved(s SYN) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proved = append(r.proved, s)
	return cmp.Or(r.rtt, provedRTT), !r.refuse && (r.steered == nil || r.steered(s))
}

func (r *recorder) NotAccepted(_ SYN, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notAccepted = append(r.notAccepted, err)
}

func (r *recorder) Accepted(c *Conn) { r.accepted <- c }

func (r *recorder) SYNACK(s SYNACK) {
	r.mu.Lock()
	r.synacks = append(r.synacks, s)
	fn := r.onSYNACK
	r.mu.Unlock()
	if fn != nil {
		fn(s)
	}
}

func (r *recorder) BareSYN(s SYN) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bare = append(r.bare, s)
}

func (r *recorder) failures() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]error(nil), r.notAccepted...)
}

func (r *recorder) bareSYNs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bare)
}

func (r *recorder) offers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offered)
}

func (r *recorder) proofs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.proved)
}

// world is a client host (application's kernel, steering, wire stack) and a
// server's wire stack, joined by a wire.
type world struct {
	t      *testing.T
	wire   *wire.Wire
	app    *stack.Stack // the application's kernel
	appIn  *wire.Pipe
	gw     *Stack // the client's
	gwIn   *wire.Pipe
	client *recorder
	server *recorder
	srv    *Stack
	adopt  chan adopted

	mu      sync.Mutex
	syns    map[tupleKey][]byte // offered SYNs as they left
	sentAt  map[tupleKey]time.Time
	owned   map[tupleKey]bool // accept seen: the wire leg belongs to the stack
	editSYN func([]byte) []byte
	late    bool
	answer  func(syn []byte) // answers an offered SYN in the server's name
}

type adopted struct {
	c   *Conn
	err error
}

type worldOptions struct {
	seed    uint64
	editSYN func([]byte) []byte
	clock   tcpip.Clock
	limits  Limits
	// late lets a handshake take as long as a busy machine needs: SYNs that are repeated
	// meanwhile go nowhere, where they would make the connection native.
	late bool
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := &world{
		t: t, wire: wire.New(testMTU, o.seed), client: newRecorder(), server: newRecorder(),
		adopt: make(chan adopted, 100), editSYN: o.editSYN,
		syns: map[tupleKey][]byte{}, sentAt: map[tupleKey]time.Time{}, owned: map[tupleKey]bool{}, late: o.late,
	}
	var handshake time.Duration
	if o.late {
		handshake = patience
	}
	w.answer = func(syn []byte) { go w.wire.B().Send(cookieAnswer(syn)) }
	w.client.refuse = true
	w.server.steered = func(syn SYN) bool { // as the owner compares
		w.mu.Lock()
		defer w.mu.Unlock()
		raw := w.syns[keyOf(Tuple{Local: syn.Tuple.Remote, Remote: syn.Tuple.Local})]
		_, tcp, ok := parseTCP(raw)
		return ok && tcp.Seq() == syn.ISN
	}
	w.appIn = wire.NewPipe(testMTU, w.fromApp)
	w.gwIn = wire.NewPipe(testMTU, w.wire.A().Send)
	w.wire.A().Handle(w.fromWire)
	w.client.onSYNACK = w.onSYNACK
	var err error
	w.app, err = newGVisor(Config{}.withDefaults(), w.appIn.Endpoint())
	require.NoError(t, err)
	for _, a := range []netip.Addr{client4, client6} {
		full, proto := fullAddress(netip.AddrPortFrom(a, 0))
		own := tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: full.Addr.WithPrefix()}
		require.Nil(t, w.app.AddProtocolAddress(nicID, own, stack.AddressProperties{}))
	}
	w.gw, err = New(Config{Link: w.gwIn, Handler: w.client, clock: o.clock})
	require.NoError(t, err)
	w.srv, err = New(Config{Link: w.wire.B(), Handler: w.server, clock: o.clock, Limits: o.limits, HandshakeTimeout: handshake})
	require.NoError(t, err)
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.appIn.Endpoint().Detach()
	w.app.Destroy()
	w.appIn.Endpoint().Stop()
	for _, c := range []io.Closer{w.gw, w.srv} {
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.wire.Close()
}

// fromApp is egress: the first SYN of a tuple gets the offer, retransmissions
// go bare or, once the wire leg is owned, nowhere.
func (w *world) fromApp(pkt []byte) {
	p, t, ok := parseTCP(pkt)
	if !ok {
		return
	}
	k := outboundKey(p.Header, t)
	w.mu.Lock()
	owned := w.owned[k]
	again := false
	var answer func([]byte)
	if !owned && t.Flags()&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN {
		if _, again = w.syns[k]; !again {
			if w.editSYN != nil {
				pkt = w.editSYN(pkt)
			}
			pkt = withOption(pkt, packet.RoleOffer, testNonce)
			w.syns[k], w.sentAt[k] = pkt, time.Now()
			answer = w.answer
		}
	}
	w.mu.Unlock()
	switch {
	case answer != nil:
		answer(pkt)
	case !owned && (!again || !w.late):
		w.wire.A().Send(pkt)
	}
}

// fromWire is ingress of the client's host.
func (w *world) fromWire(pkt []byte) {
	p, t, ok := parseTCP(pkt)
	if !ok { // ICMP
		w.gwIn.Inject(pkt)
		return
	}
	k := inboundKey(p.Header, t)
	w.mu.Lock()
	o := packet.ParseTCPOptions(t.Options())
	if syn := w.syns[k]; syn != nil && o.Option.Role == packet.RoleAccept && o.Option.Nonce == testNonce {
		w.owned[k] = true
	}
	owned := w.owned[k]
	w.mu.Unlock()
	if owned {
		w.gwIn.Inject(pkt)
	} else {
		w.appIn.Inject(pkt)
	}
}

func (w *world) onSYNACK(sa SYNACK) {
	k := keyOf(sa.Tuple)
	w.mu.Lock()
	syn, rtt := w.syns[k], time.Since(w.sentAt[k])
	w.mu.Unlock()
	c, err := w.gw.Adopt(syn, sa.Raw, rtt)
	if errors.Is(err, ErrAdopted) {
		return // the SYN-ACK came twice
	}
	w.adopt <- adopted{c, err}
}

// ReadContext is Read, waiting until there is something or ctx ends.
func (c *Conn) ReadContext(ctx context.Context, p []byte) (int, error) {
	return c.f.await(ctx, waiter.ReadableEvents, func() (int, error) { return c.Read(p) })
}

// WriteContext writes all of p unless the connection or ctx ends.
func (c *Conn) WriteContext(ctx context.Context, p []byte) (done int, err error) {
	for done < len(p) && err == nil {
		var n int
		n, err = c.f.await(ctx, waiter.WritableEvents, func() (int, error) { return c.Write(p[done:]) })
		done += n
	}
	return done, err
}

// await repeats op until it does not return ErrWouldBlock or ctx ends.
func (f *flow) await(ctx context.Context, mask waiter.EventMask, op func() (int, error)) (int, error) {
	entry, ready := waiter.NewChannelEntry(mask | waiter.EventHUp | waiter.EventErr)
	f.wq.EventRegister(&entry)
	defer f.wq.EventUnregister(&entry)
	for {
		if n, err := op(); !errors.Is(err, ErrWouldBlock) {
			return n, err
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// grown waits until c has an endpoint.
func (c *Conn) grown(t *testing.T) {
	t.Helper()
	c.QuickACK()
	within(t, "it has an endpoint", func() bool { return c.f.state().endpoint() })
}

// dial connects as an application does.
func (w *world) dial(ctx context.Context, remote netip.AddrPort) (*gonet.TCPConn, error) {
	to, proto := fullAddress(remote)
	return gonet.DialContextTCP(ctx, w.app, to, proto)
}

// dialApp makes the application connect; the result is dropped.
func (w *world) dialApp(remote netip.AddrPort) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := w.dial(ctx, remote); err == nil {
			_ = c.Close()
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// connect returns both wire legs of an adopted connection.
func (w *world) connect(v6 bool) (c, s *Conn) {
	w.t.Helper()
	w.dialApp(serverAddr(v6))
	return w.adoptedConn(), w.acceptedConn()
}

func (w *world) adoptedConn() *Conn {
	w.t.Helper()
	select {
	case a := <-w.adopt:
		require.NoError(w.t, a.err)
		w.t.Cleanup(a.c.Forget)
		return a.c
	case <-time.After(patience):
		require.FailNow(w.t, "nothing adopted")
		return nil
	}
}

func (w *world) acceptedConn() *Conn {
	w.t.Helper()
	select {
	case c := <-w.server.accepted:
		w.t.Cleanup(c.Forget)
		return c
	case <-time.After(patience):
		require.FailNow(w.t, "nothing accepted", "%v", w.server.failures())
		return nil
	}
}

func serverAddr(v6 bool) netip.AddrPort {
	if v6 {
		return netip.AddrPortFrom(server6, testPort)
	}
	return netip.AddrPortFrom(server4, testPort)
}

// rebuild makes a raw packet of new options and payload under the headers of pkt.
func rebuild(pkt []byte, edit func(t packet.TCP) (opts []byte)) []byte {
	p, t, ok := parseTCP(pkt)
	if !ok {
		panic("not a tcp segment")
	}
	t = append([]byte(nil), t...)
	q := buildTCP(p.Header, t, edit(t), p.Payload[len(t):p.Total-len(p.Header)])
	defer q.DecRef()
	return link.Flatten(q)
}

// withOption appends our option.
func withOption(pkt []byte, role packet.Role, nonce uint16) []byte {
	return rebuild(pkt, func(t packet.TCP) []byte { return appendOption(t[packet.TCPMinLen:], role, nonce) })
}

// without blanks the options of the given kinds.
func without(pkt []byte, kinds ...byte) []byte {
	return rebuild(pkt, func(t packet.TCP) []byte {
		for _, k := range kinds {
			t.Options().Blank(k)
		}
		return t[packet.TCPMinLen:]
	})
}

// transfer sends n bytes from a to b and compares checksums.
func transfer(t *testing.T, a, b *Conn, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = rng.Read(data)
	errs := make(chan error, 1)
	go func() {
		_, err := a.WriteContext(ctx, data)
		errs <- err
	}()
	got, buf := sha256.New(), make([]byte, 64<<10)
	for left := n; left > 0; {
		m, err := b.ReadContext(ctx, buf[:min(left, len(buf))])
		require.NoError(t, err, "%d of %d bytes left", left, n)
		got.Write(buf[:m])
		left -= m
	}
	require.NoError(t, <-errs)
	want := sha256.Sum256(data)
	require.Equal(t, want[:], got.Sum(nil))
}

// slowClock is a clock of which a second takes fifty: on a busy machine, too, what has to come within some
// milliseconds of it does. A test may advance it besides.
func slowClock(t *testing.T) *faketime.ManualClock {
	t.Helper()
	clock, over := faketime.NewManualClock(), make(chan struct{})
	var runs sync.WaitGroup
	runs.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				clock.Advance(time.Millisecond / 50)
			case <-over:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(over)
		runs.Wait()
	})
	return clock
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

func within(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, 2*time.Millisecond, what)
}

// segmentOf makes a raw segment from src to dst.
func segmentOf(src, dst netip.AddrPort, seq, ack uint32, flags byte, opts, payload []byte) []byte {
	return packet.Segment{
		Src: src, Dst: dst, Seq: seq, Ack: ack, Flags: flags, Window: 64240, Options: opts, Payload: payload,
	}.Append(nil)
}

// synOptions are those of a usual kernel.
func synOptions() []byte {
	return []byte{packet.KindMSS, 4, 5, 180, packet.KindSACKPermitted, 2, packet.KindTimestamps, 10, 0, 0, 1, 0, 0, 0, 0, 0, packet.KindNOP, packet.KindWindowScale, 3, 7}
}

func makeSYN(v6 bool, port uint16, isn uint32, role packet.Role) []byte {
	tup := Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(v6)}
	if v6 {
		tup.Local = netip.AddrPortFrom(client6, port)
	}
	return makeSYNOf(tup, isn, role)
}

func makeSYNTo(port, to uint16, isn uint32, role packet.Role) []byte {
	return makeSYNOf(Tuple{
		Local: netip.AddrPortFrom(client4, port), Remote: netip.AddrPortFrom(server4, to),
	}, isn, role)
}

func makeSYNOf(tup Tuple, isn uint32, role packet.Role) []byte {
	opts := synOptions()
	if role != 0 {
		opts = appendOption(opts, role, testNonce)
	}
	return segmentOf(tup.Local, tup.Remote, isn, 0, packet.FlagSYN, opts, nil)
}

func makeSYNACK(syn []byte, iss uint32, role packet.Role, nonce uint16, ack uint32) []byte {
	p, t, _ := parseTCP(syn)
	tup := outboundKey(p.Header, t).tuple()
	return segmentOf(tup.Remote, tup.Local, iss, ack, packet.FlagSYN|packet.FlagACK, appendOption(synOptions(), role, nonce), nil)
}

// tooBig makes the ICMP error that quotes pkt.
func tooBig(router netip.Addr, pkt []byte, mtu uint16) []byte {
	p, _ := parseIP(pkt, len(pkt))
	quote := pkt[:min(len(pkt), len(p.Header)+28)]
	h := packet.Header{Src: router, Dst: p.Src(), Proto: packet.ProtoICMP, TTL: 64}
	ip := make([]byte, h.Len())
	msg := append(make([]byte, icmpHeaderLen), quote...)
	pseudo := uint16(0)
	if p.V6() {
		h.Proto = packet.ProtoICMPv6
		msg[0] = icmpV6TooBig
		binary.BigEndian.PutUint32(msg[4:], uint32(mtu))
	} else {
		msg[0], msg[1] = icmpUnreachable, icmpFragNeeded
		binary.BigEndian.PutUint16(msg[6:], mtu)
	}
	h.Put(ip, len(msg))
	if p.V6() {
		pseudo = packet.PseudoSum(ip, h.Proto, len(msg))
	}
	binary.BigEndian.PutUint16(msg[2:], ^packet.Sum(msg, pseudo))
	return append(ip, msg...)
}

func makeTuple(port uint16) Tuple {
	return Tuple{Local: netip.AddrPortFrom(client4, port), Remote: serverAddr(false)}
}

func timestamps() []byte {
	return []byte{packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10, 0, 0, 1, 1, 0, 0, 0, 0}
}
