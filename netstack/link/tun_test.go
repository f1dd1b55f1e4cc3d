package link

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pieces makes an outbound packet with a payload of n slices, and says what its bytes are.
func pieces(v6 bool, n int) (*stack.PacketBuffer, []byte) {
	var payload buffer.Buffer
	var want []byte
	for i := range n {
		b := []byte{byte(i), byte(i >> 8)}
		more := buffer.MakeWithData(b)
		payload.Merge(&more) // as gVisor joins segments
		want = append(want, b...)
	}
	hlen := header.IPv4MinimumSize
	if v6 {
		hlen = header.IPv6MinimumSize
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: 100, Payload: payload})
	head := make([]byte, hlen+header.TCPMinimumSize)
	for i := range head {
		head[i] = byte(0xa0 + i)
	}
	copy(p.TransportHeader().Push(header.TCPMinimumSize), head[hlen:])
	copy(p.NetworkHeader().Push(hlen), head[:hlen])
	return p, append(head, want...)
}

func writeTo(l *tunLink, p *stack.PacketBuffer) {
	var list stack.PacketBufferList
	list.PushBack(p)
	_, _ = l.WritePackets(list)
}

// testTUN is a TUN whose kernel is the other end.
func testTUN(t *testing.T) (l *tunLink, kernel int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Close(fds[0]))
		require.NoError(t, unix.Close(fds[1]))
	})
	p, err := TUN(fds[0], 1500)
	require.NoError(t, err)
	t.Cleanup(p.Endpoint().Detach)
	return p.(*tunLink), fds[1]
}

// A packet of however many slices leaves: writev takes 1024.
func TestTUNWritesManySlices(t *testing.T) {
	l, kernel := testTUN(t)
	got := make([]byte, 1<<16)
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, slicesMost - 1, slicesMost, slicesMost + 1, 1023, 1024, 3000} {
			p, want := pieces(v6, n)
			writeTo(l, p)
			p.DecRef()
			k, err := unix.Read(kernel, got)
			require.NoError(t, err, "%d slices", n)
			require.True(t, bytes.Equal(append(make([]byte, vnetLen), want...), got[:k]), "%d slices", n)
		}
	}
	require.Zero(t, l.Drops())
}

// What the kernel calls malformed is told from what it has no room for.
func TestTUNCountsRefused(t *testing.T) {
	l, _ := testTUN(t)
	iov := make([][]byte, 1025)
	for i := range iov {
		iov[i] = []byte{1}
	}
	require.False(t, l.writev(iov))
	require.EqualValues(t, 1, l.Refused())
}

// A usual packet takes the least of allocations: its header leaves by pointer.
func TestTUNWriteAllocates(t *testing.T) {
	l, kernel := testTUN(t)
	p, _ := pieces(false, 3)
	defer p.DecRef()
	got := make([]byte, 1<<16)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		l.write(p)
		_, _ = unix.Read(kernel, got)
	}), 1.0)
}
