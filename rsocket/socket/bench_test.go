package socket

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One byte there and back. "best" is the shortest mean of a hundred in a row: what it takes while both ends have a
// processor.
func BenchmarkConnRoundTrip(b *testing.B) {
	const batch = 100
	for name, open := range duos {
		b.Run(name, func(b *testing.B) {
			x, y := open(b, StackConfig{}).pair(ConnConfig{})
			go echo(y)
			buf := make([]byte, 1)
			best, start := time.Duration(1<<62), time.Now()
			for i := 1; b.Loop(); i++ {
				if _, err := x.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(x, buf); err != nil {
					b.Fatal(err)
				}
				if i%batch == 0 {
					now := time.Now()
					best, start = min(best, now.Sub(start)), now
				}
			}
			b.ReportMetric(float64(best.Nanoseconds())/batch, "best-ns/op")
			require.NoError(b, x.Close())
			waitFor(b, "no end", y.done)
		})
	}
}

func echo(c *Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			break
		}
		if _, err = c.Write(buf[:n]); err != nil {
			break
		}
	}
	_ = c.Close()
}

// Bytes in one direction, by the size of a write.
func BenchmarkConnBulk(b *testing.B) {
	for name, open := range duos {
		for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(name+"/"+sizeName(size), func(b *testing.B) {
				x, y := open(b, StackConfig{}).pair(ConnConfig{})
				done := make(chan error, 1)
				go func() {
					buf := make([]byte, max(64<<10, size))
					for {
						if _, err := y.Read(buf); err != nil {
							done <- err
							return
						}
					}
				}()
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := x.Write(buf); err != nil {
						b.Fatal(err)
					}
				}
				require.NoError(b, x.CloseWrite())
				select {
				case err := <-done:
					require.ErrorIs(b, err, io.EOF)
				case <-time.After(20 * time.Second):
					b.Fatal("reader hangs")
				}
				b.ReportMetric(float64(b.N)/max(1, float64(x.Stats().Messages)), "writes/message")
				require.NoError(b, x.Close())
				require.NoError(b, y.Close())
			})
		}
	}
}

func sizeName(n int) string {
	switch {
	case n >= 1<<20:
		return "1MiB"
	case n >= 64<<10:
		return "64KiB"
	case n >= 4<<10:
		return "4KiB"
	}
	return "64B"
}
