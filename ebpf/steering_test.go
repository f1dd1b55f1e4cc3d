package ebpf

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// listen opens the transparent listener of a gateway and gives it to the
// datapath.
func (h *host) listen(d *Datapath, network string) *net.TCPListener {
	h.t.Helper()
	var ln net.Listener
	var err error
	lc := net.ListenConfig{Control: gatewaySocket(network)}
	lc.SetMultipathTCP(false)
	legsOf(h.t, d).do(func() { ln, err = lc.Listen(context.Background(), network, ":15001") })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = ln.Close() })
	rc, err := ln.(*net.TCPListener).SyscallConn()
	require.NoError(h.t, err)
	require.NoError(h.t, rc.Control(func(fd uintptr) {
		if network == "tcp6" {
			require.NoError(h.t, d.SetListener(-1, int(fd)))
			return
		}
		require.NoError(h.t, d.SetListener(int(fd), -1))
	}))
	return ln.(*net.TCPListener)
}

// gatewaySocket makes a socket transparent.
func gatewaySocket(network string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) error {
		return rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if network == "tcp6" {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
				return
			}
			_ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		})
	}
}

// asyncConn is a connect() in progress.
type asyncConn struct {
	c   net.Conn
	err error
}

// connectAsync starts a connect() in the namespace.
func (h *host) connectAsync(addr string) <-chan asyncConn {
	ch := make(chan asyncConn, 1)
	go func() {
		c, err := h.connect(addr, patience)
		ch <- asyncConn{c, err}
	}()
	return ch
}

// negotiated waits for the accepting SYN-ACK at the client.
func negotiated(t *testing.T, d *Datapath) (Flow, segment) {
	t.Helper()
	sa := readTUN(t, d.WireTUN(), func(s segment) bool { return s.flags&(flagSYN|flagACK) == flagSYN|flagACK })
	f, err := d.Flow(Tuple{Local: sa.dst, Remote: sa.src})
	require.NoError(t, err)
	require.Equal(t, StateNegotiating, f.State)
	require.Equal(t, SideClient, f.Side)
	require.Equal(t, f.ISN+1, sa.ack)
	syn, ok := readSegment(f.SYN)
	require.True(t, ok)
	require.Equal(t, f.ISN, syn.seq)
	_, nonce, ok := syn.offer()
	require.True(t, ok)
	require.Equal(t, f.Nonce, nonce)
	return f, sa
}

// met leads a connection to where both gateways know of it: the client has said
// its PROPOSAL. last is that segment, back the tuple as the server sees it.
func met(t *testing.T, d1, d2 *Datapath) (f Flow, last segment, back Tuple) {
	t.Helper()
	f, sa := negotiated(t, d1)
	last = sa.third(smgw(roleConfirm, f.Nonce))
	last.payload = proposal
	writeTUN(t, d1.WireTUN(), last)
	got := readTUN(t, d2.WireTUN(), func(s segment) bool { return len(s.payload) > 0 })
	require.Equal(t, last.src, got.src)
	require.Equal(t, proposal, got.payload)
	return f, last, Tuple{Local: last.dst, Remote: last.src}
}

// The whole life of a carried flow on one 4-tuple: offer, accept, app legs with
// true addresses on both hosts, wire leg, teardown.
func TestSteering(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		t.Run(v.name, func(t *testing.T) {
			h1, h2 := newPair(t)
			firewalls(h1, h2)
			h2.echo("6379")
			d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
			ln := h1.listen(d1, v.network)
			target := net.JoinHostPort(v.addr, "6379")
			app := h1.connectAsync(target)

			// Wire legs talk both ways; the server's entry begins with the third segment.
			f1, last, back := met(t, d1, d2)
			tuple := f1.Tuple
			require.Equal(t, 0, f1.Rule)
			answer := segment{src: last.dst, dst: last.src, flags: flagACK | flagPSH, seq: last.ack, ack: last.seq, payload: []byte("ACCEPT")}
			writeTUN(t, d2.WireTUN(), answer)
			got := readTUN(t, d1.WireTUN(), func(s segment) bool { return len(s.payload) > 0 })
			require.Equal(t, "ACCEPT", string(got.payload))
			f2, err := d2.Flow(back)
			require.NoError(t, err)
			require.Equal(t, StateWire, f2.State)
			require.Equal(t, SideServer, f2.Side)
			require.True(t, f2.Acked)

			// Server app leg: dial from the client's own address and port.
			require.NoError(t, d2.Transition(back, f2.ISN, StateServing, StateWire))
			var leg2 net.Conn
			dial := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(tuple.Local), Control: gatewaySocket(v.network)}
			dial.SetMultipathTCP(false)
			legsOf(t, d2).do(func() { leg2, err = dial.Dial(v.network, target) })
			require.NoError(t, err)
			defer func() { _ = leg2.Close() }()
			exchange(t, leg2)

			// Client app leg: the recorded SYN ends in the transparent listener.
			require.NoError(t, d1.Transition(tuple, f1.ISN, StateCompleting, StateNegotiating))
			require.NoError(t, d1.InjectApp(f1.SYN))
			require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
			leg1, err := ln.AcceptTCP()
			require.NoError(t, err)
			defer func() { _ = leg1.Close() }()
			a := <-app
			require.NoError(t, a.err)
			require.NoError(t, d1.Transition(tuple, f1.ISN, StateCarrying, StateCompleting))
			require.Equal(t, tuple, tupleOf(a.c))
			require.Equal(t, a.c.LocalAddr().String(), leg1.RemoteAddr().String())
			require.Equal(t, target, leg1.LocalAddr().String())

			// The application talks to the gateway socket, and not to the wire.
			bulk(t, a.c, leg1)
			bulk(t, leg1, a.c)

			// A reset of the gateway socket reaches the application.
			require.NoError(t, leg1.SetLinger(0))
			require.NoError(t, leg1.Close())
			_, err = a.c.Read(make([]byte, 1))
			require.ErrorIs(t, err, unix.ECONNRESET)
			require.NoError(t, d1.Transition(tuple, f1.ISN, StateDead, StateCarrying))
			require.NoError(t, d1.Delete(tuple, f1.ISN))
			_, err = d1.Flow(tuple)
			require.ErrorIs(t, err, ErrNoFlow)
			_ = a.c.Close()
		})
	}
}

// bulk sends 8 MiB, large enough for segmentation offload, and compares.
func bulk(t *testing.T, from, to net.Conn) {
	t.Helper()
	data := make([]byte, 8<<20)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	deadline := time.Now().Add(patience)
	require.NoError(t, from.SetDeadline(deadline))
	require.NoError(t, to.SetDeadline(deadline))
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(data)
		sent <- err
	}()
	got := make([]byte, len(data))
	_, err := io.ReadFull(to, got)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.True(t, bytes.Equal(data, got))
}

// firewalls drop by default: the client accepts what it asked for and loopback,
// the server one source and port.
func firewalls(h1, h2 *host) {
	const in = "table inet f { chain i { type filter hook input priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ct state established,related accept; "
	h1.nft(in + "iif lo accept; }; }")
	h2.nft(in + `iifname "w0" ip saddr 10.77.0.1 tcp dport 6379 accept; iifname "w0" ip6 saddr fd77::1 tcp dport 6379 accept; }; }`)
}

// Release: reset of the wire leg, then the app's own SYN, bare; the true answer
// ends the entry.
func TestRelease(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, addr := range []string{"10.77.0.2", "fd77::2"} {
		t.Run(addr, func(t *testing.T) {
			h1, h2 := newPair(t)
			h2.echo("6379")
			d1 := h1.open(config(accelerate(6379)))
			h2.open(config(accelerate(6379)))
			inTime := false
			for n := 1; !inTime; n++ { // the kernel repeats its SYN where the test is late
				begun := time.Now()
				app := h1.connectAsync(net.JoinHostPort(addr, "6379"))
				f, sa := negotiated(t, d1)
				require.NoError(t, d1.Transition(f.Tuple, f.ISN, StateReleased, StateNegotiating))
				writeTUN(t, d1.WireTUN(), segment{src: f.Tuple.Local, dst: f.Tuple.Remote, flags: flagRST | flagACK, seq: f.ISN + 1, ack: sa.seq + 1})
				// A late copy of the old SYN-ACK must not be the answer.
				require.NoError(t, d1.InjectApp(f.SYN))
				inTime = time.Since(begun) <= refuseIn
				a := <-app
				require.NoError(t, a.err)
				if inTime {
					require.Zero(t, retransmitted(t, a.c), "answered at once, not by the retransmission")
				}
				exchange(t, a.c)
				require.NoError(t, a.c.Close())
				_, err := d1.Flow(f.Tuple)
				require.ErrorIs(t, err, ErrNoFlow)
				require.EqualValues(t, n, stat(t, d1, "syn_released"))
				require.Less(t, n, lateTries, "no SYN is released in time")
			}
		})
	}
}

// Return: a SYN that user space holds, since the client of a negotiation has
// gone on natively, returns to the kernel, which answers it as if it had just
// arrived.
func TestReturn(t *testing.T) {
	t.Parallel()
	s := newServer(t, config(accelerate(6379)))
	for _, v6 := range []bool{false, true} {
		syn := s.syn(v6, 1000)
		s.begin(syn)
		bare := syn.without()
		s.send(bare)
		s.steered(bare)
		require.False(t, s.kernelAnswers(syn, 50*time.Millisecond))
		require.NoError(t, s.d.Transition(s.tuple(syn), 1000, StateReturned, StateWire))
		require.NoError(t, s.d.InjectApp(bare.bytes(t)))
		require.True(t, s.kernelAnswers(syn, patience))
		require.Equal(t, StateNone, s.state(syn))
	}
	require.EqualValues(t, 2, stat(t, s.d, "syn_returned"))
}

// addrPort is netip.MustParseAddrPort under a shorter name.
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
