package mirror_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
)

// processorTime is what the process has used, in nanoseconds.
func processorTime(b *testing.B) (ns int64) {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkBulk is one direction of a connection, with both gateways and both libraries, which copy into and out of the
// rings.
func BenchmarkBulk(b *testing.B) {
	for name, kind := range kinds {
		b.Run(name, func(b *testing.B) {
			const piece = 64 << 10
			sides := connect(b, newGateways(b), kind, 20)
			buf := pattern[:piece]
			b.SetBytes(piece)
			read := make(chan error, 1)
			total := uint64(b.N) * piece
			began := processorTime(b)
			b.ResetTimer()
			go func() {
				in := make([]byte, piece)
				for l := sides[1].lib; l.tail < total; {
					span, err := l.span()
					if err != nil {
						read <- err
						return
					}
					l.take(copy(in, span))
				}
				read <- nil
			}()
			for range b.N {
				_, err := sides[0].lib.write(buf)
				require.NoError(b, err)
			}
			require.NoError(b, <-read)
			b.ReportMetric(float64(processorTime(b)-began)/float64(total>>10), "cpu-ns/KiB")
		})
	}
}

// BenchmarkRoundTrip is 64 bytes and as many back.
func BenchmarkRoundTrip(b *testing.B) {
	sides := connect(b, newGateways(b), negotiate.CarrierSoft, 16)
	const size = 64
	echo := make(chan error, 1)
	go func() {
		echo <- sides[1].receive(uint64(b.N)*size, size, func() { _ = sides[1].send(sides[1].lib.tail, size, func() {}) })
	}()
	began := processorTime(b)
	b.ResetTimer()
	for range b.N {
		total := sides[0].lib.head + size
		require.NoError(b, sides[0].send(total, size, func() {}))
		require.NoError(b, sides[0].receive(total, size, func() {}))
	}
	require.NoError(b, <-echo)
	b.ReportMetric(float64(processorTime(b)-began)/float64(b.N)/1e3, "cpu-µs/op")
}
