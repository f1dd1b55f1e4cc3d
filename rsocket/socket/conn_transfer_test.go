package socket

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/rsocket"
)

// patterned is the endless stream of pattern, from an offset on.
type patterned struct{ at int }

// next returns n bytes.
func (p *patterned) next(n int) []byte {
	b := make([]byte, n)
	for done := 0; done < n; {
		m := copy(b[done:], pattern[p.at%len(pattern):])
		done += m
		p.at += m
	}
	return b
}

// check consumes bytes and tells whether they are the next ones.
func (p *patterned) check(b []byte) bool { return bytes.Equal(b, p.next(len(b))) }

// Write implements io.Writer.
func (p *patterned) Write(b []byte) (int, error) {
	if !p.check(b) {
		return 0, io.ErrUnexpectedEOF
	}
	return len(b), nil
}

// writeStep and readStep are what a schedule consists of.
type writeStep struct {
	kind string
	size int
}

var writeKinds = []string{"write", "write", "pause"}

// sizes makes a generator: tests that run side by side cannot share one.
func sizes() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(1, 64), rapid.IntRange(1, 5000), rapid.IntRange(1, 300_000))
}

func drawWrites(t *rapid.T, name string) []writeStep {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) writeStep {
		return writeStep{rapid.SampledFrom(writeKinds).Draw(t, "kind"), sizes().Draw(t, "size")}
	}), 1, 40).Draw(t, name)
}

// runWrites writes the stream as the schedule says and ends it.
func runWrites(c *Conn, steps []writeStep) (total int, err error) {
	var src patterned
	for _, s := range steps {
		var n int64
		switch s.kind {
		case "write":
			var m int
			m, err = c.Write(src.next(s.size))
			n = int64(m)
		case "pause":
			time.Sleep(time.Duration(s.size%300) * time.Microsecond)
			continue
		}
		total += int(n)
		if err != nil {
			return total, err
		}
		if int(n) != s.size {
			return total, io.ErrShortWrite
		}
	}
	return total, c.CloseWrite()
}

// runReads reads with buffers of the sizes in turn until the end, or by io.Copy from the last size on.
func runReads(c *Conn, bufs []int, handOver bool) (total int, err error) {
	var want patterned
	for i := 0; ; i++ {
		if handOver && i == len(bufs) {
			n, err := io.Copy(&want, c)
			return total + int(n), err
		}
		buf := make([]byte, bufs[i%len(bufs)])
		n, err := c.Read(buf)
		if !want.check(buf[:n]) {
			return total, io.ErrUnexpectedEOF
		}
		total += n
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// transfer runs random schedules in both directions of connections of random shape: not a byte is lost, repeated or out
// of order, and nothing hangs.
func transfer(t *testing.T, d *duo) {
	rapid.Check(t, func(t *rapid.T) {
		config := rapid.Custom(func(t *rapid.T) ConnConfig {
			return ConnConfig{
				RecvBuffer: rapid.SampledFrom([]int{0, 4 << 10, 10_007, 64 << 10}).Draw(t, "receive buffer"),
				SendBuffer: rapid.SampledFrom([]int{0, 4 << 10, 9_001, 64 << 10}).Draw(t, "send buffer"),
				RecvQueue:  rapid.SampledFrom([]int{0, 16, 300}).Draw(t, "receive queue"),
				SendQueue:  rapid.SampledFrom([]int{0, 16, 300}).Draw(t, "send queue"),
				Inline:     rapid.SampledFrom([]int{0, -1, 500}).Draw(t, "inline"),
				KeepAlive:  rapid.SampledFrom([]time.Duration{0, time.Millisecond}).Draw(t, "keepalive"),
			}
		})
		a, b := d.connect(config.Draw(t, "a"), config.Draw(t, "b"))
		writes := [2][]writeStep{drawWrites(t, "writes of a"), drawWrites(t, "writes of b")}
		reads := [2][]int{rapid.SliceOfN(sizes(), 1, 10).Draw(t, "reads of a"), rapid.SliceOfN(sizes(), 1, 10).Draw(t, "reads of b")}
		handOver := rapid.Bool().Draw(t, "hand over")
		var sent, received [2]int
		var errs [4]error
		var all sync.WaitGroup
		for i, c := range []*Conn{a, b} {
			_ = c.SetDeadline(time.Now().Add(10 * patience))
			all.Go(func() { sent[i], errs[i] = runWrites(c, writes[i]) })
			all.Go(func() { received[i], errs[2+i] = runReads(c, reads[i], handOver) })
		}
		all.Wait()
		for i, err := range errs {
			require.NoError(t, err, "%d: %+v", i, [2]ConnStats{a.Stats(), b.Stats()})
		}
		require.Equal(t, sent[0], received[1])
		require.Equal(t, sent[1], received[0])
		for i, c := range []*Conn{a, b} {
			st := c.Stats()
			require.Equal(t, uint64(sent[i]), st.Sent)
			require.Equal(t, uint64(received[i]), st.Received)
			require.NoError(t, c.Close())
		}
	})
}

func TestConnTransfer(t *testing.T) { each(t, transfer) }

// Bulk both ways at once, with all the memory of the rings in use all the time.
func TestConnBulk(t *testing.T) {
	const total, size = 24 << 20, 1 << 20
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		var all sync.WaitGroup
		errs := make(chan error, 4)
		for _, c := range []*Conn{a, b} {
			_ = c.SetDeadline(time.Now().Add(10 * patience))
			all.Go(func() {
				var src patterned
				for range total / size {
					if _, err := c.Write(src.next(size)); err != nil {
						errs <- err
						return
					}
				}
				errs <- c.CloseWrite()
			})
			all.Go(func() {
				var want patterned
				n, err := io.Copy(&want, c)
				if err == nil && n != total {
					err = io.ErrUnexpectedEOF
				}
				errs <- err
			})
		}
		all.Wait()
		for range 4 {
			require.NoError(t, <-errs)
		}
		require.Less(t, a.Stats().Messages, uint64(total/4096), "bulk goes in large messages")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// The smallest rings and queues there can be carry streams both ways at once.
func TestConnSmallest(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		for _, cfg := range []ConnConfig{
			{RecvBuffer: 2, SendBuffer: 1, RecvQueue: 2, SendQueue: 2 * rsocket.ControlSlots},
			{RecvBuffer: 3, SendBuffer: 2, RecvQueue: 3, SendQueue: 2*rsocket.ControlSlots + 1, Inline: -1},
			{RecvBuffer: 17, SendBuffer: 5, RecvQueue: 2, SendQueue: 2 * rsocket.ControlSlots},
			{RecvBuffer: 70_001, SendBuffer: 66_000, RecvQueue: 2, SendQueue: 2 * rsocket.ControlSlots, IOMaps: 1},
		} {
			a, b := d.pair(cfg)
			soon(t, a, b)
			n := min(20*cfg.RecvBuffer, len(pattern))
			var all sync.WaitGroup
			for _, c := range []*Conn{a, b} {
				all.Go(func() {
					_, err := c.Write(pattern[:n])
					require.NoError(t, errors.Join(err, c.CloseWrite()))
				})
				all.Go(func() {
					got, err := io.ReadAll(c)
					require.NoError(t, err)
					require.True(t, bytes.Equal(pattern[:n], got))
				})
			}
			all.Wait()
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			waitFor(t, "nothing is left", a.done)
		}
	})
}
