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

// addrPort is netip.MustParseAddrPort under a shorter name.
func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
