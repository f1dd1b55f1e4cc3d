package soft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
)

// What the sockets can do without a transport: one way, from a thread to
// another, trains of 60 bytes of headers and checksum per datagram. The window
// is cumulatively acknowledged, so nothing is lost and no thread spins. The
// device's own benchmarks are measured against it.

const (
	rawHeaders = 60
	rawWindow  = 1 << 20   // bytes under way at most
	rawAck     = 128 << 10 // bytes per acknowledgement
)

// rawSink counts what comes and acknowledges it.
type rawSink struct {
	l     *udpLink
	bytes int
	acked int
	ack   [8]byte
	out   [1]train
}

func (s *rawSink) deliver(d *datagram) { s.bytes += len(d.data) }

func (s *rawSink) acknowledge(dst netip.AddrPort) {
	s.acked = s.bytes
	binary.BigEndian.PutUint64(s.ack[:], uint64(s.bytes))
	s.out[0] = train{dst: dst, size: 8, count: 1, total: 8, bufs: append(s.out[0].bufs[:0], s.ack[:])}
	s.l.send(s.out[:])
}

// run receives until all bytes have come. It tells how many did if they stop
// coming.
func (s *rawSink) run(all int, dst netip.AddrPort, done chan<- int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for s.bytes < all {
		more := s.l.receive(256, s)
		if s.bytes-s.acked >= rawAck || s.bytes == all {
			s.acknowledge(dst)
		}
		if !more && s.bytes < all && !readableWithin(s.l, 2*time.Second) {
			break
		}
	}
	done <- s.bytes
}

// rawSource reads acknowledgements.
type rawSource struct{ acked int }

func (s *rawSource) deliver(d *datagram) { s.acked = int(binary.BigEndian.Uint64(d.data)) }

// readableWithin sleeps until there is something to receive.
func readableWithin(l *udpLink, d time.Duration) bool {
	p := make([]unix.PollFd, 0, 4)
	for _, fd := range l.fds() {
		p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		if n, err := unix.Poll(p, int(time.Until(deadline).Milliseconds())+1); err == nil {
			return n > 0
		}
	}
	return false
}

// rawLimit sends about the given bytes as datagrams of payload and headers, and
// returns how many of payload went through.
func rawLimit(tb testing.TB, m mode, payload, bytes int) (through int) {
	tb.Helper()
	from, to, dst := linkPair(tb, m)
	back := netip.AddrPortFrom(m.a, ports(tb, from))
	require.NotZero(tb, from.sourcePort(0, 0))
	require.NotZero(tb, to.sourcePort(0, 0))

	size := payload + rawHeaders
	count := min(from.maxTrain(), maxTrainBytes/size)
	header, body := make([]byte, rawHeaders), make([]byte, payload)
	one := train{dst: dst, size: size, count: count, total: count * size}
	for range count {
		one.bufs = append(one.bufs, header, body)
	}
	all := (bytes + one.total - 1) / one.total * one.total

	done := make(chan int, 1)
	sink := &rawSink{l: to}
	go sink.run(all, back, done)
	source := &rawSource{}
	trains := make([]train, 0, outMessages)
	for sent := 0; sent < all; {
		trains = trains[:0]
		for sent+one.total-source.acked <= rawWindow && sent < all && len(trains) < cap(trains) {
			trains = append(trains, one)
			sent += one.total
		}
		from.send(trains)
		acked := source.acked
		for from.receive(16, source) {
		}
		if len(trains) == 0 && source.acked == acked && !readableWithin(from, time.Second) {
			break
		}
	}
	require.Equal(tb, all, <-done, "bytes received")
	require.Zero(tb, from.stats().SendErrors)
	return all / size * payload
}

// ports is the port a link of one address receives on.
func ports(tb testing.TB, l *udpLink) uint16 {
	at, err := sockaddr.Local(l.receivers[0])
	require.NoError(tb, err)
	return at.Port()
}

func TestRawLimit(t *testing.T) {
	forModes(t, func(t *testing.T, m mode) {
		require.GreaterOrEqual(t, rawLimit(t, m, 1024, 4<<20), 3<<20)
	})
}

func BenchmarkRawLimit(b *testing.B) {
	for _, m := range modes() {
		for _, payload := range []int{1024, 4096} {
			b.Run(fmt.Sprintf("%s/%d", m.name, payload), func(b *testing.B) {
				const chunk = 1 << 20
				b.SetBytes(chunk)
				start, cpu := time.Now(), cpuTime(b)
				through := float64(rawLimit(b, m, payload, b.N*chunk)) / 1e9
				b.ReportMetric(through*8/time.Since(start).Seconds(), "Gb/s")
				b.ReportMetric((cpuTime(b)-cpu).Seconds()/through, "cpu-s/GB")
			})
		}
	}
}

// cpuTime is what the process has used of all processors: the figure that other
// work on the machine disturbs least.
func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkUDPLinkSend is the cost of one train to a receiver that is full.
func BenchmarkUDPLinkSend(b *testing.B) {
	m := modes()[0]
	from, _, dst := linkPair(b, m)
	from.sourcePort(0, 0)
	for _, count := range []int{1, 15} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			size := 4096 + rawHeaders
			tr := []train{{dst: dst, size: size, count: count, total: count * size, bufs: [][]byte{make([]byte, count*size)}}}
			b.ReportAllocs()
			for b.Loop() {
				from.send(tr)
			}
		})
	}
}
