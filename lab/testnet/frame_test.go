package testnet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// testOption is our option with a role, version 1.
func testOption(role byte) []byte {
	return packet.AppendOption(nil, packet.Option{Version: packet.OptionVersion, Role: packet.Role(role), Nonce: 0xabcd})
}

func nops(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 1
	}
	return b
}

const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// buildFrame makes a frame (virtio header, Ethernet, IP, TCP) with complete
// checksums. Options are padded by NOPs.
func buildFrame(src, dst netip.AddrPort, srcMAC, dstMAC net.HardwareAddr, flags byte, options, payload []byte) []byte {
	options = append(append([]byte(nil), options...), nops(-len(options)&3)...)
	frame := append(append(make([]byte, vnetHeaderLen), dstMAC...), srcMAC...)
	if src.Addr().Is4() {
		frame = append(frame, 0x08, 0x00)
	} else {
		frame = append(frame, 0x86, 0xdd)
	}
	return packet.Segment{
		Src: src, Dst: dst, Seq: 0x01020304, Flags: flags, Window: 65535, Options: options, Payload: payload,
	}.Append(frame)
}

// goodChecksum verifies a TCP checksum.
func (v frameView) goodChecksum() bool {
	p, err := packet.ParseIP(v.frame[v.ip:])
	return err == nil && p.TransportSumOK()
}

// sniffer is a packet socket on a host's device, with virtio headers.
type sniffer struct {
	fd   int
	host *Host
}

func sniff(t *testing.T, h *Host) *sniffer {
	t.Helper()
	s := &sniffer{host: h}
	require.NoError(t, h.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		iface, err := net.InterfaceByName(h.Device)
		if err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 10000}),
			unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: 0x0300 /* ETH_P_ALL */, Ifindex: iface.Index}),
		)
	}))
	t.Cleanup(func() { _ = unix.Close(s.fd) })
	return s
}

func (s *sniffer) send(t *testing.T, frame []byte) {
	t.Helper()
	_, err := unix.Write(s.fd, frame)
	require.NoError(t, err)
}

// next returns the next arriving TCP frame that matches, or false when none
// comes for the time given.
func (s *sniffer) next(t *testing.T, wait time.Duration, match func(frameView) bool) (frameView, bool) {
	t.Helper()
	buf := make([]byte, maxFrame)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(s.fd, buf, 0)
		if err != nil {
			require.Contains(t, []error{unix.EAGAIN, unix.EINTR}, err)
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		v, ok := viewFrame(append([]byte(nil), buf[:n]...))
		if ok && match(v) {
			return v, true
		}
	}
	return frameView{}, false
}

// between matches the segments of one port pair, resets by the kernel, which
// knows nothing of our connections, excepted.
func between(sport, dport uint16) func(frameView) bool {
	return func(v frameView) bool {
		return v.Flags()&flagRST == 0 &&
			binary.BigEndian.Uint16(v.frame[v.l4:]) == sport &&
			binary.BigEndian.Uint16(v.frame[v.l4+2:]) == dport
	}
}

func mac(h *Host) net.HardwareAddr { return hostMAC(h.number) }
