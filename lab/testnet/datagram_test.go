package testnet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestIsDatagram(t *testing.T) {
	v4 := make([]byte, vnetHeaderLen+14+28)
	v4[vnetHeaderLen+12] = 8
	v4[vnetHeaderLen+14] = 0x45
	v4[vnetHeaderLen+14+3] = 28
	v4[vnetHeaderLen+14+9] = 17
	binary.BigEndian.PutUint16(v4[vnetHeaderLen+14+22:], 4791)
	v6 := make([]byte, vnetHeaderLen+14+48)
	copy(v6[vnetHeaderLen+12:], []byte{0x86, 0xdd})
	v6[vnetHeaderLen+14] = 0x60
	v6[vnetHeaderLen+14+5] = 8
	v6[vnetHeaderLen+14+6] = 17
	binary.BigEndian.PutUint16(v6[vnetHeaderLen+14+40:], 4791)
	for _, frame := range [][]byte{v4, v6} {
		require.True(t, isDatagram(frame, 4791))
		require.False(t, isDatagram(frame, 4790))
		for n := range len(frame) {
			require.False(t, isDatagram(frame[:n], 4791), n)
		}
	}
}

func packetConn(t *testing.T, h *Host, a netip.AddrPort) (c net.PacketConn) {
	t.Helper()
	require.NoError(t, h.Do(func() (err error) {
		c, err = net.ListenPacket("udp", a.String())
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// datagrams sends n numbered datagrams from h1 to h2 and returns what arrives,
// in order.
func datagrams(t *testing.T, h1, h2 *Host, port uint16, n int) (got []uint32) {
	t.Helper()
	in, out := packetConn(t, h2, h2.AddrPort4(port)), packetConn(t, h1, h1.AddrPort4(0))
	defer in.Close()
	rc, err := in.(*net.UDPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) { // for all of them
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	}))
	var all sync.WaitGroup
	sent := make(chan struct{})
	all.Go(func() {
		defer close(sent)
		for i := range n {
			_, _ = out.WriteTo(binary.BigEndian.AppendUint32(nil, uint32(i)), net.UDPAddrFromAddrPort(h2.AddrPort4(port)))
			if i%20 == 0 { // the receive buffer holds some hundreds
				time.Sleep(time.Millisecond)
			}
		}
	})
	defer all.Wait()
	buf := make([]byte, 64)
	for silent := 0; ; { // on a busy machine the sender may rest, and a deadline may pass before the read begins
		require.NoError(t, in.SetReadDeadline(time.Now().Add(time.Second)))
		k, _, err := in.ReadFrom(buf)
		if err != nil {
			<-sent
			if silent++; silent == 2 {
				return got
			}
			continue
		}
		silent = 0
		require.Equal(t, 4, k)
		got = append(got, binary.BigEndian.Uint32(buf))
	}
}

// TestBoxDatagrams: only datagrams of the port are lost, doubled and reordered,
// the same ones every time.
func TestBoxDatagrams(t *testing.T) {
	n, h1, h2 := start(t, Config{Hosts: []string{"h1", "h2"}})
	const count = 1000
	box := Box{UDP: Datagrams{Port: 4791, Loss: 100, Dup: 50, Reorder: 50, Seed: 7}}
	var runs [2][]uint32
	for i := range runs {
		require.NoError(t, n.SetBox(box)) // the luck begins again
		runs[i] = datagrams(t, h1, h2, 4791, count)
	}
	seen := func(got []uint32) (times map[uint32]int) {
		times = map[uint32]int{}
		for _, v := range got {
			times[v]++
		}
		return times
	}
	first := seen(runs[0])
	require.Equal(t, first, seen(runs[1]), "the same seed, the same luck")
	require.InDelta(t, count*9/10, len(first), 50)
	require.InDelta(t, len(first)*105/100, len(runs[0]), 40)
	require.NotEqual(t, runs[0], slices.Sorted(slices.Values(runs[0])))
	s := boxStats(t, n)
	require.NotZero(t, s.Lost)
	require.NotZero(t, s.Duplicated)
	require.NotZero(t, s.Reordered)

	box.UDP.Seed = 8
	require.NoError(t, n.SetBox(box))
	require.NotEqual(t, first, seen(datagrams(t, h1, h2, 4791, count)))

	other := datagrams(t, h1, h2, 4792, count)
	require.Len(t, other, count, "other ports pass")
	require.Equal(t, slices.Sorted(slices.Values(other)), other)
}
