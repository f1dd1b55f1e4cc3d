package netstack

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/smcgw/smcgw/packet"
)

// virtio_net_hdr as the kernel has it (linux/virtio_net.h).
const (
	virtioLen       = 10
	virtioNeedsCsum = 1
	virtioDataValid = 2
	virtioTCPv4     = 1
	virtioTCPv6     = 4
)

// fakeTUN is a TUN link over one end of a datagram socket pair; the test holds
// the other, as the kernel would.
func fakeTUN(t *testing.T) (s *Stack, h *recorder, kernel int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(fds[1], false))
	tv := unix.Timeval{Sec: 30}
	require.NoError(t, unix.SetsockoptTimeval(fds[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	require.NoError(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20))
	link, err := link.TUN(fds[0], testMTU)
	require.NoError(t, err)
	h = newRecorder()
	s, err = New(Config{Link: link, Handler: h})
	require.NoError(t, err)
	stop := drive(t, link)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		stop()
		_, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0)
		require.NoError(t, err, "the descriptor is the caller's")
		require.NoError(t, unix.Close(fds[0]))
		require.NoError(t, unix.Close(fds[1]))
	})
	return s, h, fds[1]
}

// drive has a link deliver what comes, until stop.
func drive(t *testing.T, l link.Polled) (stop func()) {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		waits := []unix.PollFd{{Fd: int32(l.FD()), Events: unix.POLLIN}, {Fd: int32(bell), Events: unix.POLLIN}}
		for waits[1].Revents == 0 {
			_, _ = unix.Poll(waits, -1)
			for more, err := true, error(nil); more && err == nil; {
				more, err = l.Receive()
			}
		}
	})
	return func() {
		_, err := unix.Write(bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		require.NoError(t, err)
		wg.Wait()
		require.NoError(t, unix.Close(bell))
	}
}

func kernelWrite(t *testing.T, fd int, flags byte, pkt []byte) {
	t.Helper()
	_, err := unix.Write(fd, append(append([]byte{flags}, make([]byte, virtioLen-1)...), pkt...))
	require.NoError(t, err)
}

func kernelRead(t *testing.T, fd int) (vnet, pkt []byte) {
	t.Helper()
	b := make([]byte, 70000)
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR { // SO_RCVTIMEO takes SA_RESTART from Go's signals
		n, err = unix.Read(fd, b)
	}
	require.NoError(t, err)
	return b[:virtioLen], b[virtioLen:n]
}

// complete does what the kernel does to a packet whose checksum it was left.
func complete(t *testing.T, vnet, pkt []byte) {
	t.Helper()
	if vnet[0]&virtioNeedsCsum == 0 {
		return
	}
	start, off := binary.NativeEndian.Uint16(vnet[6:]), binary.NativeEndian.Uint16(vnet[8:])
	sum := ^checksum.Checksum(pkt[start:], 0)
	binary.BigEndian.PutUint16(pkt[start+off:], sum)
}

func requireValid(t *testing.T, pkt []byte) (packet.IP, packet.TCP) {
	t.Helper()
	p, tcp, ok := parseTCP(pkt)
	require.True(t, ok)
	buf := link.Buffer(pkt)
	defer buf.DecRef()
	require.True(t, p.HeaderSumOK() && sumOK(p, buf), "checksums")
	require.Equal(t, len(pkt), p.Total)
	return p, tcp
}

func TestTUNReceive(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s, h, fd := fakeTUN(t)
		bad := makeSYN(v6, 1, 100, packet.RoleOffer)
		bad[len(bad)-1] ^= 1
		kernelWrite(t, fd, 0, bad) // not even the kernel has looked at it
		within(t, "counted", func() bool { return s.Stats().ChecksumErrors == 1 })
		binary.BigEndian.PutUint16(bad[len(bad)-52+16:], 0x1234)
		kernelWrite(t, fd, virtioNeedsCsum, bad) // from this host: no checksum yet
		within(t, "taken", func() bool { return h.offers() == 1 })
		kernelWrite(t, fd, virtioDataValid, makeSYN(v6, 2, 100, packet.RoleOffer))
		within(t, "taken", func() bool { return h.offers() == 2 })
		require.EqualValues(t, 1, s.Stats().ChecksumErrors)
	}
}

// A bulk write leaves as super-packets, none of which carries the option: the
// kernel would copy it into every segment.
func TestTUNSend(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, sack := range []bool{false, true} {
			s, _, fd := fakeTUN(t)
			syn := makeSYN(v6, 1, 100, packet.RoleOffer)
			synack := makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101)
			if !sack {
				syn, synack = without(syn, packet.KindSACKPermitted), without(synack, packet.KindSACKPermitted)
			}
			c, err := s.Adopt(syn, synack, time.Millisecond)
			require.NoError(t, err)
			defer c.Forget()
			c.grown(t)
			vnet, pkt := kernelRead(t, fd)
			complete(t, vnet, pkt)
			_, tcp := requireValid(t, pkt)
			require.EqualValues(t, packet.RoleConfirm, packet.ParseTCPOptions(tcp.Options()).Option.Role)
			n, err := c.Write(make([]byte, 100000))
			require.NoError(t, err)
			require.Equal(t, 100000, n)
			checkBulk(t, fd, v6)
		}
	}
}

func checkBulk(t *testing.T, fd int, v6 bool) {
	t.Helper()
	next, super := uint32(101), 0
	for next < 101+10000 {
		vnet, pkt := kernelRead(t, fd)
		complete(t, vnet, pkt)
		p, tcp := requireValid(t, pkt)
		payload := len(p.Payload) - len(tcp)
		require.Equal(t, next, tcp.Seq())
		if next == 101 && payload == 0 {
			continue // the acknowledgement of the endpoint
		}
		require.NotZero(t, payload)
		first := next == 101
		require.Equal(t, first, packet.ParseTCPOptions(tcp.Options()).Option.Role == packet.RoleConfirm)
		if gso := vnet[1] != 0; gso {
			super++
			want := byte(virtioTCPv4)
			if v6 {
				want = virtioTCPv6
			}
			require.Equal(t, want, vnet[1])
			mss := int(binary.NativeEndian.Uint16(vnet[4:]))
			hdr := int(binary.NativeEndian.Uint16(vnet[2:]))
			require.Equal(t, len(p.Header)+len(tcp), hdr)
			require.LessOrEqual(t, hdr+mss, testMTU)
			require.Greater(t, payload, mss)
		} else {
			require.LessOrEqual(t, len(pkt), testMTU)
		}
		require.False(t, first && vnet[1] != 0)
		next += uint32(payload)
	}
	require.NotZero(t, super)
}

func TestTUNCloseIsPrompt(t *testing.T) {
	s, _, _ := fakeTUN(t)
	start := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(start), patience)
	_, err := link.TUN(0, 100)
	require.Error(t, err)
}

// Large packets come in through the whole ladder.
func TestTUNLargePackets(t *testing.T) {
	s, h, fd := fakeTUN(t)
	const ack = cookieISS + 1
	src := makeTuple(1)
	kernelWrite(t, fd, 0, segmentOf(src.Local, src.Remote, 101, ack, packet.FlagACK, provingStamps(), nil))
	c := <-h.accepted
	defer c.Forget()
	seq := uint32(101)
	for _, size := range []int{1, 2008, 2009, 10200, 26000, 30000} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		kernelWrite(t, fd, virtioNeedsCsum, segmentOf(src.Local, src.Remote, seq, ack, packet.FlagACK, timestamps(), data))
		seq += uint32(size)
		got := make([]byte, size)
		readFull(t, c, got)
		require.Equal(t, data, got)
	}
	require.Zero(t, s.Stats().Malformed)
}

// Small writes that wait for the peer leave together, however many they are.
func TestTUNSmallWrites(t *testing.T) {
	s, h, fd := fakeTUN(t)
	const ack = cookieISS + 1
	src, stamps := makeTuple(1), provingStamps()
	window := func(acked int, n uint16) {
		kernelWrite(t, fd, 0, packet.Segment{
			Src: src.Local, Dst: src.Remote, Seq: 101, Ack: ack + uint32(acked), Flags: packet.FlagACK, Window: n, Options: stamps,
		}.Append(nil))
	}
	window(0, 0)
	stamps = timestamps()
	c := <-h.accepted
	defer c.Forget()
	var want, got []byte
	for i := range 3000 {
		_, err := c.Write([]byte{byte(i), byte(i >> 8)})
		require.NoError(t, err)
		want = append(want, byte(i), byte(i>>8))
	}
	window(0, 500)
	for len(got) < len(want) {
		vnet, pkt := kernelRead(t, fd)
		complete(t, vnet, pkt)
		p, tcp := requireValid(t, pkt)
		if tcp.Seq() == ack+uint32(len(got)) {
			got = append(got, p.Payload[len(tcp):]...)
		}
		window(len(got), 500)
	}
	require.Equal(t, want, got)
	require.Zero(t, s.Stats().LinkDrops)
}
