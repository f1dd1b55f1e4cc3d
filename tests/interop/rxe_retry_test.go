package interop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// TestRXERetry has a peer acknowledge a WRITE while rdma_rxe retransmits it, and then be silent, like a peer that
// gets no processor for a while. At the next timeout rdma_rxe (req_retry of Linux 6.12) takes the WRITE for
// unfinished although nothing of it is left, and sends an empty one with the PSN of the next message. All that
// follows has the wrong PSN, so a responder in the middle of that message refuses it: its NAK is REM_INV_REQ_ERR. So
// connections of gateways may leave rdma_rxe through no fault of theirs. If rdma_rxe is fixed, this test will fail
// and show it.
func TestRXERetry(t *testing.T) {
	if !thorough() {
		t.Skip("a fault of others: make interop")
	}
	testnet.Require(t, "vm", "apt-get", "dpkg-deb", "xz", "zstd", "gcc")
	l, err := labOf(guest.Linux612) // 6.1's does it only most of the time
	require.NoError(t, err)
	path := l.paths()[1] // IPv6: there is no identification for the ICRC to cover
	require.True(t, path.our.Is6())
	r := &retried{t: t, our: path.our}
	require.NoError(t, l.host.Do(func() (err error) {
		if r.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(path.our, verbs.RoCEUDPPort))); err != nil {
			return err
		}
		raw, err := r.conn.SyscallConn()
		if err != nil {
			return err
		}
		// The kernel's RoCEv2 has no UDP checksum.
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1) }), err)
	}))
	t.Cleanup(func() { _ = r.conn.Close() })
	ln := l.listen(t, l.host.Addr4, perftestPort)
	program := l.start(t, "ib_write_bw", "-d", guest.Device, "-x", fmt.Sprint(path.gid), "-n", "100", "-F", "-m", "1024",
		"-s", fmt.Sprint(retriedSize), l.host.Addr4.String())
	defer program.Kill()
	conn, err := ln.Accept()
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	r.meet(conn)

	first := r.peer.psn
	last := wire.PSNAdd(first, retriedSize/1024-1)
	r.until("all of the WRITE", func(h *wire.Header) bool { return h.PSN == last })
	r.answer(wire.NAKSequence, first) // it was lost, so retransmit it
	r.answer(wire.ACK, last)          // it was not lost
	r.until("an empty WRITE of the next PSN", func(h *wire.Header) bool {
		return h.PSN == wire.PSNAdd(last, 1) && h.Opcode == wire.RCWriteOnly && h.Length == 0
	})
	r.until("the next WRITE with the PSN behind its own", func(h *wire.Header) bool {
		return h.PSN == wire.PSNAdd(last, 2) && h.Opcode == wire.RCWriteFirst && h.Length == retriedSize
	})
}

// retriedSize makes a WRITE of as many packets as rdma_rxe sends before an acknowledgement.
const retriedSize = 128 << 10

// retried is a hand-made peer of rdma_rxe.
type retried struct {
	t    *testing.T
	our  netip.Addr
	conn *net.UDPConn
	peer perftestPeer
	from netip.AddrPort
}

// meet plays a program's server.
func (r *retried) meet(conn net.Conn) {
	p := &perftest{e: &endpoint{t: r.t}, conn: conn, server: true}
	keys := fmt.Appendf(nil, perftestKeys, 0, perftestReads, 0x4242, 0, 0x1234, 0x10000)
	for _, x := range verbs.GIDOf(r.our) {
		keys = fmt.Appendf(keys, "%02x:", x)
	}
	keys = append(fmt.Appendf(keys, "%08x:", 0), 0)
	for _, part := range perftestPreamble {
		require.Equal(r.t, part, p.step(part))
	}
	p.step(keys)
	theirs := p.step(keys)
	require.NoError(r.t, r.peer.read(theirs), "%q", theirs)
	p.step(keys)
}

// until reads requests until one is as wanted.
func (r *retried) until(what string, wanted func(h *wire.Header) bool) {
	r.t.Helper()
	require.NoError(r.t, r.conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	var b [2048]byte
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(b[:])
		require.NoError(r.t, err, "never: %s", what)
		var h wire.Header
		_, err = h.Parse(b[:n])
		require.NoError(r.t, err)
		r.from = from
		if wanted(&h) {
			return
		}
	}
}

// answer acknowledges a packet or refuses it.
func (r *retried) answer(syndrome wire.Syndrome, psn uint32) {
	r.t.Helper()
	to := netip.AddrPortFrom(r.from.Addr(), verbs.RoCEUDPPort)
	h := wire.Header{Opcode: wire.RCAcknowledge, Migrated: true, PKey: 0xffff, DestQP: r.peer.qpn, PSN: psn, Syndrome: syndrome}
	b := h.Append(nil, 0)
	c := wire.NewICRC(wire.Flow{Src: r.our, Dst: to.Addr().WithZone(""), SrcPort: verbs.RoCEUDPPort, DstPort: verbs.RoCEUDPPort})
	_, err := r.conn.WriteToUDPAddrPort(wire.AppendICRC(b, c.Begin(0, len(b)+wire.ICRCLen, b)), to)
	require.NoError(r.t, err)
}
