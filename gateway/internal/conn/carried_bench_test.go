package conn

import (
	"runtime"
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

// BenchmarkBulk is one direction of a flow, with both gateways and both applications: what the benchmark of package mirror
// is compared with.
func BenchmarkBulk(b *testing.B) {
	for _, kind := range []negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierSHM} {
		b.Run(kind.String(), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8)) // beside the loops, which hold theirs while they are busy
			p := newPair(b)
			c := p.dial(b, kind)
			var fds [2]int
			for i := range fds {
				f, err := c.app[i].File()
				require.NoError(b, err)
				defer f.Close()
				fds[i] = int(f.Fd())
				require.NoError(b, unix.SetNonblock(fds[i], false))
			}
			const piece = 64 << 10
			buf := make([]byte, piece)
			total := b.N * piece
			b.SetBytes(piece)
			began := processorTime(b)
			b.ResetTimer()
			done := make(chan struct{})
			go func() {
				in := make([]byte, piece)
				for got := 0; got < total; {
					n, err := unix.Read(fds[1], in)
					if err != nil || n == 0 {
						panic(err)
					}
					got += n
				}
				close(done)
			}()
			for range b.N {
				_, err := unix.Write(fds[0], buf)
				require.NoError(b, err)
			}
			<-done
			b.ReportMetric(float64(processorTime(b)-began)/float64(total>>10), "cpu-ns/KiB")
		})
	}
}
