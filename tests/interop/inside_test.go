package interop

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
	"github.com/smcgw/smcgw/verbs/hw"
)

const (
	// insideVariable tells a test that it runs in the guest. Its value has the adapter, both addresses, and the
	// agent's.
	insideVariable = "SMCGW_INSIDE"
	// peerVariable tells such a test to exchange data with our side on the host, at an address, or if it is "listen",
	// to wait for it.
	peerVariable = "SMCGW_INSIDE_PEER"
	// insideProgram is the path of this package's tests in the guest.
	insideProgram = "/programs/interop.test"
)

// inside is the guest, for a test that runs in it. Our side uses the kernel's rxe through libibverbs and the kernel's
// connection manager, as on an adapter. Our side and the programs reach each other on the same rxe.
type inside struct {
	adapter      string
	addr4, addr6 netip.Addr
	agent        string
}

func parseInside(text string) (*inside, error) {
	in := &inside{}
	var a4, a6 string
	if _, err := fmt.Sscan(text, &in.adapter, &a4, &a6, &in.agent); err != nil {
		return nil, err
	}
	var err error
	if in.addr4, err = netip.ParseAddr(a4); err == nil {
		in.addr6, err = netip.ParseAddr(a6)
	}
	return in, err
}

// Start starts a program beside the test.
func (in *inside) Start(name string, args ...string) (*remote.Process, error) {
	conn, err := net.DialTimeout("tcp", in.agent, 20*time.Second)
	if err != nil {
		return nil, err
	}
	return remote.Start(conn, remote.Command{Args: append([]string{"stdbuf", "-oL", name}, args...)})
}

func (in *inside) device(t *testing.T) *hw.Device {
	t.Helper()
	dev, err := hw.Open(hw.Config{Adapter: in.adapter, BoundCQs: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// TestAdapterSockets runs rsockets on the kernel's rxe, with stock programs and with themselves as peers. It runs in
// the guest.
func TestAdapterSockets(t *testing.T) {
	if text := os.Getenv(insideVariable); text != "" {
		in, err := parseInside(text)
		require.NoError(t, err)
		l := &lab{series: guest.Linux612, inside: in}
		if peer := os.Getenv(peerVariable); peer != "" {
			across(t, l, peer)
			return
		}
		t.Run("rstream", func(t *testing.T) { rstreams(t, l) })
		t.Run("riostream", func(t *testing.T) { riostreams(t, l) })
		t.Run("rcopy", func(t *testing.T) { rcopies(t, l) })
		t.Run("itself", func(t *testing.T) { ourselves(t, l) })
		return
	}
	l := insideLab(t)
	limit := 4 * time.Minute
	if thorough() {
		limit = 40 * time.Minute
	}
	p := l.startInside(t, limit, "SMCGW_INTEROP="+os.Getenv("SMCGW_INTEROP"))
	err := p.Wait(patience(t, limit+time.Minute))
	require.NoError(t, err, p.Output())
	for _, part := range []string{"rstream", "riostream", "rcopy", "itself"} {
		require.Contains(t, p.Output(), "--- PASS: TestAdapterSockets/"+part+" ")
	}
	require.NotContains(t, p.Output(), "--- SKIP")
	t.Log(verdicts(p.Output()))
	l.nothingLeft(t)
	for _, path := range l.paths() {
		s := l.stack(t, path)
		t.Run("soft accepts from adapter, "+path.name, func(t *testing.T) {
			accept := s.listen(acrossPort)
			p := l.startInside(t, limit, peerVariable+"="+netip.AddrPortFrom(path.our, acrossPort).String())
			require.NoError(t, play(accept()))
			require.NoError(t, p.Wait(patience(t, limit)), p.Output())
		})
		t.Run("soft connects to adapter, "+path.name, func(t *testing.T) {
			p := l.startInside(t, limit, peerVariable+"=listen")
			require.NoError(t, play(s.dial(acrossPort)))
			require.NoError(t, p.Wait(patience(t, limit)), p.Output())
		})
		s.orderly(2)
	}
	l.nothingLeft(t)
}

// acrossPort is the port where our sides of host and guest meet.
const acrossPort = 7600

// startInside starts this test in the guest.
func (l *lab) startInside(t *testing.T, limit time.Duration, env string) *remote.Process {
	t.Helper()
	return l.start(t, "env", testnet.RequireVariable+"=kernel", env,
		fmt.Sprintf("%s=%s %v %v %v", insideVariable, guest.Device, l.guest.Addr4, l.guest.Addr6, netip.AddrPortFrom(l.guest.Addr4, 7)),
		insideProgram, "-test.v", "-test.timeout", limit.String(), "-test.run", "^TestAdapterSockets$")
}

// across exchanges data with our side on the host: its software device and package cm with the kernel's rxe and
// manager.
func across(t *testing.T, l *lab, peer string) {
	s := l.stack(t, l.paths()[0])
	if peer == "listen" {
		lc := socket.ListenConfig{Stack: s.stack}
		ln, err := lc.Listen(t.Context(), netip.AddrPortFrom(netip.Addr{}, acrossPort))
		require.NoError(t, err)
		defer func() { require.NoError(t, ln.Close()) }()
		conn, err := ln.AcceptConn(patience(t, time.Minute))
		require.NoError(t, err)
		require.NoError(t, play(conn))
		return
	}
	d := socket.Dialer{Stack: s.stack, Timeout: time.Minute}
	conn, err := d.Dial(t.Context(), netip.MustParseAddrPort(peer))
	require.NoError(t, err)
	require.NoError(t, play(conn))
}

// insideLab starts a guest with this package's tests, built with cgo.
func insideLab(t *testing.T) *lab {
	t.Helper()
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	file := filepath.Join(t.TempDir(), "interop.test")
	build(t.Context(), t, "1", "test", "-c", "-o", file, "github.com/smcgw/smcgw/tests/interop")
	return bootWith(patience(t, 10*time.Minute), t, guest.Linux612, guest.Config{Files: map[string]string{insideProgram: file}})
}

// ourselves runs connections both ends of which are ours: by the kernel's manager, to a listener on all addresses.
func ourselves(t *testing.T, l *lab) {
	for _, path := range l.paths() {
		s := l.stack(t, path)
		t.Run(path.name, func(t *testing.T) {
			lc := socket.ListenConfig{Stack: s.stack}
			ln, err := lc.Listen(t.Context(), netip.AddrPort{})
			require.NoError(t, err)
			port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
			d := socket.Dialer{Stack: s.stack, Timeout: time.Minute}
			for range 3 {
				exchange(t,
					func(ctx context.Context) (*socket.Conn, error) { return ln.AcceptConn(ctx) },
					func(ctx context.Context) (*socket.Conn, error) {
						return d.Dial(ctx, netip.AddrPortFrom(path.peer, port))
					})
			}
			require.NoError(t, ln.Close())
			_, err = d.Dial(t.Context(), netip.AddrPortFrom(path.peer, port))
			require.Error(t, err)
		})
	}
}

// exchange plays both ends of a connection.
func exchange(t *testing.T, accept, dial func(context.Context) (*socket.Conn, error)) {
	t.Helper()
	ctx := patience(t, 2*time.Minute)
	var both errgroup.Group
	for i, open := range []func(context.Context) (*socket.Conn, error){accept, dial} {
		both.Go(func() error {
			conn, err := open(ctx)
			if err == nil {
				err = play(conn)
			}
			if err != nil {
				return fmt.Errorf("end %d: %w", i, err)
			}
			return nil
		})
	}
	require.NoError(t, both.Wait())
}

// play sends some megabytes, receives as many, and ends in order.
func play(conn *socket.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	r := &rstream{conn: conn}
	const size = 3<<20 + 17
	var ways errgroup.Group
	ways.Go(func() error { return r.receive(size) })
	ways.Go(func() error {
		if err := r.send(size, 100_000); err != nil {
			return err
		}
		return conn.CloseWrite()
	})
	if err := ways.Wait(); err != nil {
		return err
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // it comes as it is
		return fmt.Errorf("%d bytes after the last: %w", n, err)
	}
	return conn.Close()
}
