package soft

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/leak"
)

// arrived collects what a link delivers.
type arrived struct {
	src  []netip.AddrPort
	ce   []bool
	data [][]byte
	to   []int
}

func (a *arrived) deliver(d *datagram) {
	a.src = append(a.src, d.src)
	a.ce = append(a.ce, d.ce)
	a.data = append(a.data, bytes.Clone(d.data))
	a.to = append(a.to, d.local)
}

// mode is a way to use the sockets.
type mode struct {
	name      string
	a, b      netip.Addr
	noOffload bool
}

func modes() []mode {
	a4, b4, a6 := netip.MustParseAddr("127.0.71.1"), netip.MustParseAddr("127.0.71.2"), netip.MustParseAddr("::1")
	return []mode{
		{"ipv4", a4, b4, false},
		{"ipv6", a6, a6, false},
		{"ipv4 without offload", a4, b4, true},
		{"ipv6 without offload", a6, a6, true},
	}
}

func forModes(t *testing.T, f func(t *testing.T, m mode)) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

// freePort is a port below the source ports that no socket has on loopback.
func freePort(t testing.TB) uint16 {
	for range 100 {
		port := uint16(20000 + rand.IntN(12000))
		fd, err := bindUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), port), nil)
		if err != nil {
			continue
		}
		defer func() { require.NoError(t, unix.Close(fd)) }()
		fd6, err := bindUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), port), nil)
		if err != nil {
			continue
		}
		require.NoError(t, unix.Close(fd6))
		return port
	}
	t.Fatal("no free port")
	return 0
}

func openLink(t testing.TB, cfg Config, vector int) *udpLink {
	cfg = cfg.withDefaults()
	require.NoError(t, cfg.Validate())
	l, err := newUDPLink(&cfg, vector)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.close()) })
	return l.(*udpLink)
}

// linkPair is a sender and a receiver, on ports of their own.
func linkPair(t testing.TB, m mode) (from, to *udpLink, dst netip.AddrPort) {
	port := freePort(t)
	from = openLink(t, Config{Addrs: []netip.Addr{m.a}, UDPPort: freePort(t), NoOffload: m.noOffload}, 0)
	to = openLink(t, Config{Addrs: []netip.Addr{m.b}, UDPPort: port, NoOffload: m.noOffload}, 0)
	return from, to, netip.AddrPortFrom(m.b, port)
}

// await reads a link until n datagrams have come.
func await(t testing.TB, l *udpLink, n int) *arrived {
	t.Helper()
	var got arrived
	awaitInto(t, l, func() bool { return len(got.data) >= n }, &got)
	require.Equal(t, n, len(got.data))
	return &got
}

func awaitInto(t testing.TB, l *udpLink, done func() bool, to receiver) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		for l.receive(64, to) {
		}
		if done() {
			return
		}
		require.True(t, time.Now().Before(deadline), "datagrams missing")
		waitReadable(l, 100)
	}
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

func waitReadable(l *udpLink, ms int) {
	var p []unix.PollFd
	for _, fd := range l.fds() {
		p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	_, _ = unix.Poll(p, ms)
}

// empty asserts that nothing comes.
func empty(t testing.TB, l *udpLink) {
	t.Helper()
	var got arrived
	waitReadable(l, 20)
	require.False(t, l.receive(64, &got))
	require.Empty(t, got.data)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// makeTrains cuts data into datagrams, as trains as long as the link takes.
func makeTrains(l *udpLink, dst netip.AddrPort, lane uint8, size int, data []byte) (trains []train) {
	n := min(l.maxTrain(), maxTrainBytes/size) * size
	for part := range slices.Chunk(data, n) {
		trains = append(trains, train{lane: lane, dst: dst, size: size, count: (len(part) + size - 1) / size, total: len(part), bufs: [][]byte{part}})
	}
	return trains
}

func TestUDPLinkTrains(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		from, to, dst := linkPair(t, m)
		require.Equal(t, m.noOffload, from.maxTrain() == 1)
		port := from.sourcePort(0, 3)
		require.GreaterOrEqual(t, port, uint16(firstSourcePort))
		require.Equal(t, port, from.sourcePort(0, 3))
		require.NotEqual(t, port, from.sourcePort(0, 4))
		for _, total := range []int{1, 1083, 1084, 1085, 10*1084 + 17, 59 * 1084, 100*1084 + 1} {
			data := pattern(total)
			from.send(makeTrains(from, dst, 3, 1084, data))
			got := await(t, to, (total+1083)/1084)
			i := 0
			for want := range slices.Chunk(data, 1084) {
				require.Equal(t, want, got.data[i])
				require.Equal(t, netip.AddrPortFrom(m.a, port), got.src[i])
				require.False(t, got.ce[i])
				require.Zero(t, got.to[i])
				i++
			}
		}
		empty(t, to)
		s, r := from.stats(), to.stats()
		require.Zero(t, s.SendErrors)
		require.Equal(t, s.SentPackets, r.ReceivedPackets)
		require.Equal(t, s.SentBytes, r.ReceivedBytes)
		require.EqualValues(t, 1+1+1+2+11+59+101, s.SentPackets)
		if !m.noOffload {
			require.EqualValues(t, 6+1, s.SentCalls, "two trains of one lane go in one call")
			require.Less(t, r.ReceivedCalls, uint64(60))
		}
	})
}

// Whatever way a train is cut into buffers, the datagrams are the same; also
// when there are more buffers than the kernel takes, and none at all in some.
func TestUDPLinkGather(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		from, to, dst := linkPair(t, m)
		from.sourcePort(0, 0)
		for _, most := range []int{1, 7, 40, 300, 5000} {
			size := 512
			n := min(from.maxTrain(), 20) * size
			data := pattern(n)
			var bufs [][]byte
			for rest := data; len(rest) > 0; {
				k := min(rand.IntN(most+1), len(rest))
				bufs, rest = append(bufs, rest[:k]), rest[k:]
			}
			tr := train{dst: dst, size: size, count: n / size, total: n, bufs: bufs}
			from.send([]train{tr, tr, tr})
			got := await(t, to, 3*n/size)
			require.Equal(t, append(append(bytes.Clone(data), data...), data...), bytes.Join(got.data, nil))
			require.Zero(t, from.stats().SendErrors)
		}
		require.Zero(t, from.out.used)
		require.Nil(t, from.out.bufs[0].Base, "nothing of a train is kept")
	})
}

// A burst is delivered in portions of about the budget, none of it lost.
func TestUDPLinkBudget(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		from, to, dst := linkPair(t, m)
		from.sourcePort(0, 0)
		from.send(makeTrains(from, dst, 0, 100, pattern(1000*100)))
		total, worst, portions := 0, 0, 0
		for deadline := time.Now().Add(patience); total < 1000 && time.Now().Before(deadline); {
			var got arrived
			more := to.receive(10, &got)
			total += len(got.data)
			worst = max(worst, len(got.data))
			portions++
			if !more && total < 1000 { // the kernel is after with its deliveries
				waitReadable(to, 100)
			}
		}
		require.Equal(t, 1000, total)
		require.Greater(t, portions, 1)
		if m.noOffload {
			require.Equal(t, 10, worst)
		}
		require.LessOrEqual(t, worst, 10*maxTrainCount)
		require.False(t, to.receive(0, &arrived{}))
	})
}

// Trains to many destinations and from several addresses and lanes, in one go.
func TestUDPLinkManyAddresses(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("127.0.72.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.72.3")}
	port := freePort(t)
	l := openLink(t, Config{Addrs: addrs, UDPPort: port}, 0)
	require.Len(t, l.fds(), 3)
	var trains []train
	for i := range 30 {
		local := i % 3
		lane := uint8(i / 3 % 2)
		require.NotZero(t, l.sourcePort(local, lane))
		trains = append(trains, train{
			local: local, lane: lane, dst: netip.AddrPortFrom(addrs[local], port), size: 1,
			count: 1, total: 1, bufs: [][]byte{{byte(i)}},
		})
	}
	l.send(trains)
	got := await(t, l, 30)
	for i, b := range got.data {
		n := int(b[0])
		require.Equal(t, n%3, got.to[i])
		require.Equal(t, netip.AddrPortFrom(addrs[n%3], l.sourcePort(n%3, uint8(n/3%2))), got.src[i])
	}
	// One socket after the other gets its turn, whatever the others have.
	l.send(trains)
	for _, fd := range l.fds() {
		n, err := 0, error(unix.EINTR)
		for err == unix.EINTR { // poll() ends with any signal of Go's
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
		}
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	seen := map[int]bool{}
	for range 3 {
		got := arrived{}
		require.True(t, l.receive(1, &got))
		require.Len(t, got.to, 1)
		seen[got.to[0]] = true
	}
	require.Len(t, seen, 3)
}

// What the kernel refuses is counted, goes to the log once per kind, and takes
// nothing with it.
func TestUDPLinkRefusals(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		var out bytes.Buffer
		from, to, dst := linkPair(t, m)
		from.log = slog.New(slog.NewTextHandler(&out, nil))
		from.sourcePort(0, 0)
		ok := train{dst: dst, size: 4, count: 1, total: 4, bufs: [][]byte{[]byte("good")}}
		nowhere := ok
		nowhere.dst = netip.AddrPortFrom(m.b, 0)
		from.send([]train{ok, nowhere, ok, nowhere, ok})
		got := await(t, to, 3)
		require.Equal(t, []byte("good"), got.data[2])
		require.EqualValues(t, 2, from.stats().SendErrors)
		require.EqualValues(t, 3, from.stats().SentPackets)
		require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("invalid argument")), out.String())

		long := ok
		long.total, long.bufs, long.size = maxTrainBytes+1, [][]byte{pattern(maxTrainBytes + 1)}, maxTrainBytes+1
		unopened := ok
		unopened.lane = 9
		from.send([]train{long, unopened, ok})
		await(t, to, 1)
		require.EqualValues(t, 4, from.stats().SendErrors)
	})
}

// A datagram above the MTU is refused here instead of cut into fragments.
func TestUDPLinkTooBig(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		var out bytes.Buffer
		from, to, dst := linkPair(t, m)
		from.log = slog.New(slog.NewTextHandler(&out, nil))
		from.sourcePort(0, 0)
		// Above the length of an IP packet; over IPv6 a socket can lower the
		// path MTU for itself, as an ICMP message would for all sockets.
		if m.a.Is4() {
			require.True(t, sendRaw(t, from, dst, 65535-20-8+1).tooLong)
		} else {
			require.NoError(t, unix.SetsockoptInt(from.senders[0][0].fd, unix.IPPROTO_IPV6, unix.IPV6_MTU, 1280))
			one := []train{{dst: dst, size: 2000, count: 1, total: 2000, bufs: [][]byte{pattern(2000)}}}
			from.send(one)
			require.True(t, one[0].tooLong)
		}
		require.EqualValues(t, 1, from.stats().SendErrors)
		require.Contains(t, out.String(), "message too long")
		if m.a.Is6() && !m.noOffload {
			two := []train{{dst: dst, size: 2000, count: 2, total: 4000, bufs: [][]byte{pattern(4000)}}}
			from.send(two)
			require.True(t, two[0].tooLong)
			require.EqualValues(t, 2, from.stats().SendErrors)
			require.Equal(t, maxTrainCount, from.maxTrain(), "a train too big says nothing about trains")
		}
		empty(t, to)
	})
}

// sendRaw sends a datagram of n bytes past the check for the longest train.
func sendRaw(t *testing.T, l *udpLink, dst netip.AddrPort, n int) train {
	b := make([]byte, n)
	tr := []train{{dst: dst, size: n, count: 1, total: n, bufs: [][]byte{b}}}
	require.True(t, l.out.fits(&tr[0]))
	l.out.add(&tr[0])
	l.flush(l.senders[0][0].fd, tr)
	return tr[0]
}

// A kernel that cuts no trains after all: the link learns it by the first one,
// of which the first datagram arrives.
func TestUDPLinkTrainsRefused(t *testing.T) {
	for _, m := range modes()[:2] {
		t.Run(m.name, func(t *testing.T) {
			from, to, dst := linkPair(t, m)
			from.sourcePort(0, 0)
			// Without checksums the kernel refuses UDP_SEGMENT with EINVAL.
			level, name := withoutChecksum(m)
			require.NoError(t, unix.SetsockoptInt(from.senders[0][0].fd, level, name, 1))
			data := pattern(3000)
			trains := makeTrains(from, dst, 0, 1000, data)
			require.Len(t, trains, 1)
			from.send([]train{trains[0], trains[0]})
			require.Equal(t, data[:1000], await(t, to, 1).data[0])
			require.Equal(t, 1, from.maxTrain())
			require.EqualValues(t, 2, from.stats().SendErrors)
			require.EqualValues(t, 1, from.stats().SentPackets)

			from.send(trains) // built before
			require.EqualValues(t, 3, from.stats().SendErrors)
			from.send(makeTrains(from, dst, 0, 1000, data))
			require.Equal(t, data, bytes.Join(await(t, to, 3).data, nil))
		})
	}
}

// The kernel's rxe sends no UDP checksums, over IPv6 neither.
func TestUDPLinkNoChecksum(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		from, to, dst := linkPair(t, m)
		from.sourcePort(0, 0)
		level, name := withoutChecksum(m)
		require.NoError(t, unix.SetsockoptInt(from.senders[0][0].fd, level, name, 1))
		from.send([]train{{dst: dst, size: 4, count: 1, total: 4, bufs: [][]byte{[]byte("good")}}})
		require.Equal(t, []byte("good"), await(t, to, 1).data[0])
	})
}

// withoutChecksum names the option of a socket that computes no checksums.
func withoutChecksum(m mode) (level, name int) {
	if m.a.Is6() {
		return unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX
	}
	return unix.SOL_SOCKET, unix.SO_NO_CHECK
}

// The mark of congestion arrives with the datagram; what we send has none.
func TestUDPLinkECN(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		from, to, dst := linkPair(t, m)
		from.sourcePort(0, 0)
		size := 600
		n := min(from.maxTrain(), 3)
		tr := train{ect: true, dst: dst, size: size, count: n, total: n * size, bufs: [][]byte{pattern(n * size)}}
		from.send([]train{tr})
		require.NotContains(t, await(t, to, n).ce, true)

		level, name := unix.IPPROTO_IP, unix.IP_TOS
		if m.a.Is6() {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		// A network that marks: a socket whose datagrams are so from the start.
		require.NoError(t, unix.SetsockoptInt(from.senders[0][0].fd, level, name, ecnCE))
		tr.ect = false
		from.send([]train{tr})
		require.NotContains(t, await(t, to, n).ce, false)
		tr.ect = true
		from.send([]train{tr})
		require.NotContains(t, await(t, to, n).ce, true, "the train's mark, not the socket's")
	})
}

// With several vectors the kernel hands each datagram to the vector that the
// low bits of the destination queue pair name.
func TestUDPLinkSteering(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		for _, vectors := range []int{2, 3, 16} {
			cfg := Config{Addrs: []netip.Addr{m.b}, UDPPort: freePort(t), Vectors: vectors, NoOffload: m.noOffload}
			var to []*udpLink
			for v := range vectors {
				to = append(to, openLink(t, cfg, v))
			}
			from := openLink(t, Config{Addrs: []netip.Addr{m.a}, UDPPort: freePort(t), NoOffload: m.noOffload}, 0)
			dst := netip.AddrPortFrom(m.b, cfg.UDPPort)
			var trains []train
			for qp := range 64 {
				lane := uint8(qp % lanes)
				require.NotZero(t, from.sourcePort(0, lane))
				b := pattern(20)
				b[destQPLow] = byte(qp)
				trains = append(trains, makeTrains(from, dst, lane, 20, b)...)
			}
			from.send(trains)
			from.send([]train{{dst: dst, size: 2, count: 1, total: 2, bufs: [][]byte{{1, 2}}}}) // no queue pair to read
			for v, l := range to {
				want := 0
				for qp := range uint32(64) {
					if vectorOf(qp, vectors) == v {
						want++
					}
				}
				if v == 0 {
					want++
				}
				for _, b := range await(t, l, want).data {
					if len(b) == 2 {
						require.Zero(t, v)
						continue
					}
					require.Equal(t, v, vectorOf(uint32(b[destQPLow]), vectors))
				}
			}
			for _, l := range to {
				require.NoError(t, l.close())
			}
		}
	})
}

// No two devices share a port, however many vectors either has.
func TestUDPLinkPortTaken(t *testing.T) {
	for _, vectors := range []int{1, 2} {
		cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.73.1")}, UDPPort: freePort(t), Vectors: vectors}.withDefaults()
		for v := range vectors {
			openLink(t, cfg, v)
		}
		for _, other := range []int{1, 2} {
			cfg.Vectors = other
			cfg.Addrs = []netip.Addr{netip.MustParseAddr("127.0.73.9"), cfg.Addrs[len(cfg.Addrs)-1]}
			before := len(leak.OpenFiles())
			_, err := newUDPLink(&cfg, 0)
			require.ErrorIs(t, err, unix.EADDRINUSE)
			require.ErrorContains(t, err, cfg.Addrs[1].String())
			require.Equal(t, before, len(leak.OpenFiles()))
		}
	}
	cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, UDPPort: freePort(t)}.withDefaults()
	_, err := newUDPLink(&cfg, 0)
	require.ErrorIs(t, err, unix.EADDRNOTAVAIL)
}

func TestUDPLinkClose(t *testing.T) {
	before := len(leak.OpenFiles())
	cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr("127.0.74.1"), netip.MustParseAddr("::1")}, UDPPort: freePort(t), Vectors: 2}.withDefaults()
	for v := range 2 {
		l, err := newUDPLink(&cfg, v)
		require.NoError(t, err)
		for i := range lanes {
			require.NotZero(t, l.sourcePort(0, uint8(i)))
			require.NotZero(t, l.sourcePort(1, uint8(i)))
		}
		defer func() {
			require.NoError(t, l.close())
			require.NoError(t, l.close())
			require.Zero(t, l.sourcePort(0, 0))
			require.False(t, l.receive(10, &arrived{}))
			l.send([]train{{dst: netip.AddrPortFrom(cfg.Addrs[0], cfg.UDPPort), count: 1, bufs: [][]byte{{1}}, total: 1, size: 1}})
			require.EqualValues(t, 1, l.stats().SendErrors)
			if v == 1 {
				return
			}
			require.Equal(t, before, len(leak.OpenFiles()))
		}()
	}
	require.Equal(t, before+2*(2+2*lanes), len(leak.OpenFiles()))
}
