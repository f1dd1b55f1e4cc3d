package ebpf

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

// carriedPair is the two ends of a carried connection in tests of two datapaths in
// one namespace.
type carriedPair struct {
	t        *testing.T
	d1, d2   *Datapath
	f1       Flow
	back     Tuple
	app      net.Conn
	leg1     net.Conn // of the client's gateway
	leg2     net.Conn // of the server's, which talks to an echo
	sent     uint32   // on the wire legs
	returned uint32
}

// carryPair makes a connection that is steered by d1 and d2.
func carryPair(t *testing.T, h1, h2 *host, d1, d2 *Datapath, ln *net.TCPListener, network, target string) *carriedPair {
	t.Helper()
	app := h1.connectAsync(target)
	f1, last, back := met(t, d1, d2)
	p := &carriedPair{t: t, d1: d1, d2: d2, f1: f1, back: back, sent: last.seq + uint32(len(last.payload)), returned: last.ack}
	p.wireLegs()
	require.NoError(t, d2.Transition(p.back, f1.ISN, StateServing, StateWire))
	dial := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(f1.Tuple.Local), Control: gatewaySocket(network)}
	dial.SetMultipathTCP(false)
	var err error
	legsOf(t, d2).do(func() { p.leg2, err = dial.Dial(network, target) })
	require.NoError(t, err)
	require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCompleting, StateNegotiating))
	require.NoError(t, d1.InjectApp(f1.SYN))
	require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
	p.leg1, err = ln.AcceptTCP()
	require.NoError(t, err)
	a := <-app
	require.NoError(t, a.err)
	p.app = a.c
	require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCarrying, StateCompleting))
	t.Cleanup(p.close)
	return p
}

// close ends all sockets, while they are still steered.
func (p *carriedPair) close() {
	for _, c := range []net.Conn{p.app, p.leg1, p.leg2} {
		_ = c.Close()
	}
}

// wireLegs sends a segment each way between the wire legs.
func (p *carriedPair) wireLegs() {
	p.t.Helper()
	text := []byte("RECORD")
	loaded := func(s segment) bool { return len(s.payload) > 0 && s.src.Port() != 0 }
	out := segment{src: p.f1.Tuple.Local, dst: p.f1.Tuple.Remote, flags: flagACK | flagPSH, seq: p.sent, ack: p.returned, payload: text}
	writeTUN(p.t, p.d1.WireTUN(), out)
	got := readTUN(p.t, p.d2.WireTUN(), loaded)
	require.Equal(p.t, out.src, got.src)
	p.sent += uint32(len(text))
	in := segment{src: out.dst, dst: out.src, flags: flagACK | flagPSH, seq: p.returned, ack: p.sent, payload: text}
	writeTUN(p.t, p.d2.WireTUN(), in)
	got = readTUN(p.t, p.d1.WireTUN(), loaded)
	require.Equal(p.t, in.src, got.src)
	p.returned += uint32(len(text))
}

// works: application, both gateway sockets and the wire legs talk.
func (p *carriedPair) works() {
	p.t.Helper()
	bulk(p.t, p.app, p.leg1)
	bulk(p.t, p.leg1, p.app)
	exchange(p.t, p.leg2)
	p.wireLegs()
}

// Two datapaths in one namespace: the old one's connections go on while the new
// one takes those that begin, on both hosts, at every step, and what is left in
// the end is what one leaves.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		t.Run(v.name, func(t *testing.T) {
			h1, h2 := newPair(t)
			before := h1.attachments()
			h2.echo("6379")
			target := net.JoinHostPort(v.addr, "6379")
			cfg := config(accelerate(6379))
			d1, d2 := h1.open(cfg), h2.open(cfg)
			old := carryPair(t, h1, h2, d1, d2, h1.listen(d1, v.network), v.network, target)
			old.works()

			e1, e2 := h1.beside(d1, cfg), h2.beside(d2, cfg)
			require.True(t, e1.HasNeighbour())
			old.works()
			ln := h1.listen(e1, v.network)
			waiting := h1.connectAsync(target) // answered by the old one, which has to know its cookie
			f, sa := negotiated(t, d1)
			for _, d := range []*Datapath{d1, d2} {
				require.NoError(t, d.Retire())
			}
			third := sa.third(smgw(roleConfirm, f.Nonce)) // at once: soon the negotiation is overdue
			third.payload = proposal
			writeTUN(t, d1.WireTUN(), third)
			readTUN(t, d2.WireTUN(), func(s segment) bool { return s.src == third.src && len(s.payload) > 0 })
			require.NoError(t, d1.Transition(f.Tuple, f.ISN, StateReleased, StateNegotiating))
			require.NoError(t, d2.Delete(Tuple{Local: third.dst, Remote: third.src}, f.ISN, StateWire))
			require.NoError(t, d1.InjectApp(f.SYN))
			gone := <-waiting
			require.NoError(t, gone.err)
			require.NoError(t, gone.c.Close())
			require.NoError(t, h1.dial(target, patience), "between the two a connection is native")
			old.works()
			for _, d := range []*Datapath{e1, e2} {
				require.NoError(t, d.Activate())
			}
			old.works()
			young := carryPair(t, h1, h2, e1, e2, ln, v.network, target)
			young.works()
			old.works()
			require.EqualValues(t, 2, stat(t, d1, "offered"))
			require.EqualValues(t, 1, stat(t, e1, "offered"))
			require.EqualValues(t, 2, stat(t, d2, "served"))
			require.EqualValues(t, 1, stat(t, e2, "served"))
			n, err := d1.Counters()
			require.NoError(t, err)
			require.Empty(t, n.Native[SideClient], "what it leaves to its successor is no decision")

			old.close()
			young.works()
			require.NoError(t, d1.Close())
			require.NoError(t, d2.Close())
			young.works()
			require.Eventually(t, func() bool { return !e1.HasNeighbour() }, patience, 10*time.Millisecond)
			young.works()
			young.close()
			require.NoError(t, e1.Close())
			h1.attached(t, before)
		})
	}
}

// beside opens the next generation beside a datapath.
func (h *host) beside(d *Datapath, cfg Config) *Datapath {
	h.t.Helper()
	n, err := d.Neighbour()
	require.NoError(h.t, err)
	require.NoError(h.t, n.Validate())
	cfg.Generation, cfg.Beside = d.cfg.Generation%2+1, &n
	return h.open(cfg)
}

// A successor that never takes over leaves the first one as it was, and the one
// that is opened beside a gateway that was killed removes what that has left.
func TestBesideTheDead(t *testing.T) {
	t.Parallel()
	h1, _ := newPair(t)
	cfg := config(accelerate(6379))
	before := h1.attachments()
	d := h1.open(cfg)
	alone := h1.attachments()
	e := h1.beside(d, cfg)
	require.NoError(t, d.Retire())
	require.NoError(t, e.Close())
	require.NoError(t, d.Activate())
	h1.attached(t, alone)

	e = h1.beside(d, cfg)
	require.NoError(t, d.Retire())
	require.NoError(t, e.Activate())
	require.NoError(t, d.Close())
	require.Eventually(t, func() bool { return !e.HasNeighbour() }, patience, 10*time.Millisecond)
	require.NoError(t, e.Close())
	h1.attached(t, before)
}

// Refuse gives every new connection a reason, whatever the mode.
func TestRefuse(t *testing.T) {
	t.Parallel()
	c := newClient(t, config(accelerate(6379)))
	require.NoError(t, c.d.Refuse(64))
	syn, tuple := c.offered(ghost4 + ":6379")
	_, _, offered := syn.offer()
	require.False(t, offered)
	require.Equal(t, State(0), c.state(tuple))
	c.rec.wait(t, patience, nativeFor(SideClient, 64))
	require.NoError(t, c.d.Refuse(0))
	syn, _ = c.offered(ghost4 + ":6379")
	_, _, offered = syn.offer()
	require.True(t, offered)
}

// What the kernel still has to deliver for closed gateway sockets is counted.
func TestLingering(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h2.echo("6379")
	cfg := config(accelerate(6379))
	d1, d2 := h1.open(cfg), h2.open(cfg)
	p := carryPair(t, h1, h2, d1, d2, h1.listen(d1, "tcp4"), "tcp4", "10.77.0.2:6379")
	lingering := func() int {
		n, err := d1.Lingering()
		require.NoError(t, err)
		return n
	}
	require.Zero(t, lingering())
	for full := false; !full; { // until the application's buffer is full: what is on its way stays there
		require.NoError(t, p.leg1.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
		var err error
		for err == nil {
			_, err = p.leg1.Write(make([]byte, 1<<20))
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		n := onItsWay(t, p.leg1)
		time.Sleep(50 * time.Millisecond)
		full = n > 0 && onItsWay(t, p.leg1) == n
	}
	require.NoError(t, p.leg1.(*net.TCPConn).SetLinger(-1))
	require.NoError(t, p.leg1.Close())
	require.Equal(t, 1, lingering())
	buf := make([]byte, 1<<20)
	require.NoError(t, p.app.SetReadDeadline(time.Now().Add(patience)))
	for err := error(nil); err == nil; {
		_, err = p.app.Read(buf)
	}
	require.NoError(t, p.app.Close())
	require.Eventually(t, func() bool { return lingering() == 0 }, patience, 10*time.Millisecond)
}

// onItsWay returns how many bytes the other end of a connection has not acknowledged.
func onItsWay(t *testing.T, c net.Conn) (n int) {
	t.Helper()
	rc, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		require.NoError(t, err)
	}))
	return n
}

// A neighbour is described by another process.
func TestNeighbourIsChecked(t *testing.T) {
	good := Neighbour{Generation: 1, AppIndex: 3}
	require.NoError(t, good.Validate())
	for name, spoil := range map[string]func(n *Neighbour){
		"generation": func(n *Neighbour) { n.Generation = 10 },
		"none":       func(n *Neighbour) { n.Generation = 0 },
		"interface":  func(n *Neighbour) { n.AppIndex = -1 },
	} {
		n := good
		spoil(&n)
		require.Error(t, n.Validate(), name)
	}
	_, err := Open(Config{Generation: 1, Beside: &good})
	require.ErrorContains(t, err, "neighbour")
}

// TestCarryAndCount: a datapath that counts carries, and counts again, with policy and counters
// as they were; every connection meanwhile is counted once, and nothing is left behind.
func TestCarryAndCount(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h2.echo("6379")
	d1, d2 := h1.open(withLegs(t, countingConfig(accelerate(6379)))), h2.open(withLegs(t, countingConfig(accelerate(6379))))
	before, there := h1.attachments(), h2.attachments()
	for round := range 2 {
		counted, stop, connected := d1.selected(t, 0), make(chan struct{}), make(chan int)
		go func() {
			n := 0
			defer func() { connected <- n }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if c, err := h1.connect("10.77.0.2:6379", patience); err == nil {
					n++
					_ = c.Close()
				}
			}
		}()
		require.NoError(t, d2.Carry())
		for range 3 {
			require.NoError(t, d1.Carry())
			require.NoError(t, d1.Carry(), "it carries already")
			require.NotEqual(t, before, h1.attachments())
			require.NoError(t, d1.Count())
			h1.attached(t, before)
			require.Equal(t, 3, offerings(d1))
		}
		require.NoError(t, d1.Carry())
		close(stop)
		n := <-connected
		require.EqualValues(t, counted+uint64(n), d1.selected(t, 0))
		require.Positive(t, n)

		for _, d := range []*Datapath{d1, d2} {
			require.NoError(t, d.SetMode(ModeEnforce))
		}
		ln := h1.listen(d1, "tcp4")
		app := h1.connectAsync("10.77.0.2:6379")
		f1, _, back := met(t, d1, d2)
		require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCompleting, StateNegotiating))
		require.NoError(t, d1.InjectApp(f1.SYN))
		require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
		leg, err := ln.AcceptTCP()
		require.NoError(t, err, round)
		a := <-app
		require.NoError(t, a.err)
		bulk(t, a.c, leg)
		_, _, _ = a.c.Close(), leg.Close(), ln.Close()
		require.NoError(t, d1.Delete(f1.Tuple, f1.ISN))
		require.NoError(t, d2.Delete(back, f1.ISN))
		for _, d := range []*Datapath{d1, d2} {
			require.NoError(t, d.SetMode(ModeObserve))
			require.NoError(t, d.Count())
		}
		h1.attached(t, before)
		h2.attached(t, there) // or the next round may find a device of this one in use
	}
}

// offerings counts the links by which connections are seen.
func offerings(d *Datapath) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.offering)
}

// TestCarryFails: a datapath that cannot carry counts as before, and leaves nothing.
func TestCarryFails(t *testing.T) {
	h1, h2 := newPair(t)
	h2.echo("6379")
	cfg := withLegs(t, countingConfig(accelerate(6379)))
	d := h1.open(cfg)
	before := h1.attachments()
	other := withLegs(t, config(nil))
	second := h1.open(other) // has the names of the devices
	fds := len(leak.OpenFiles())
	require.ErrorIs(t, d.Carry(), ErrInUse)
	require.Equal(t, fds, len(leak.OpenFiles()))
	require.NoError(t, second.Close())
	require.NoError(t, cfg.Legs.Close())
	require.ErrorContains(t, d.Carry(), "legs")
	h1.attached(t, before)
	c, err := h1.connect("10.77.0.2:6379", patience)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 1, d.selected(t, 0))
	require.NoError(t, d.Close())
	require.Error(t, d.Carry())
}
