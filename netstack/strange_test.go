package netstack

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/packet"
)

// A kernel that answers for a peer that has gone, from TIME_WAIT, ends the connection
// as its reset would. Beside a peer that answers itself, no such answer ends it.
func TestStrangers(t *testing.T) {
	clock := faketime.NewManualClock()
	b := newBench(t, Config{clock: clock})
	c := b.accept(1, 100)
	iss := c.ServerISN()
	answer := func(ack uint32, payload string) {
		b.fromClient(1, 9000, ack, packet.FlagACK, 0, payload)
		clock.Advance(2 * time.Second)
	}
	open := func() {
		t.Helper()
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrWouldBlock)
		require.Zero(t, b.s.Stats().Strangers)
	}
	for _, strange := range []uint32{iss - oldestACK, iss + 2, iss + 1<<31} {
		for range 4 {
			for range 5 {
				answer(strange, "")
			}
			open()
			b.fromClient(1, 101, iss+1, packet.FlagACK, packet.RoleConfirm, "") // the peer itself
		}
	}
	for range 20 {
		answer(iss+1<<31, "no answer to a probe")
	}
	open()
	for range 200 { // soon
		b.fromClient(1, 9000, iss+1<<31, packet.FlagACK, 0, "")
	}
	within(t, "all have come", func() bool { return c.f.strange.Count() == 200 })
	open()
	clock.Advance(segment.StrangeTime)
	answer(iss+1<<31, "")
	within(t, "reset", func() bool {
		_, err := c.Read(make([]byte, 1))
		return !errors.Is(err, ErrWouldBlock)
	})
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.EqualValues(t, 1, b.s.Stats().Strangers)
}

// A live peer is asked, and answers: strange answers end nothing, on either side. They do when the peer is silent.
func TestStrangersBesideThePeer(t *testing.T) {
	for name, connect := range map[string]func(w *world) (c, s *Conn){
		"mini sockets": (*world).minis,
		"endpoints":    (*world).endpoints,
	} {
		t.Run(name, func(t *testing.T) {
			clock := faketime.NewManualClock()
			w := newWorld(t, worldOptions{clock: clock})
			over := make(chan struct{})
			var runs sync.WaitGroup
			runs.Go(func() { // it runs on its own too: a handshake waits for timers
				for tick := time.NewTicker(time.Millisecond); ; {
					select {
					case <-tick.C:
						clock.Advance(time.Millisecond)
					case <-over:
						tick.Stop()
						return
					}
				}
			})
			defer runs.Wait()
			defer close(over)
			c, s := connect(w)
			say(t, c, s, 777)
			say(t, s, c, 100)
			second := func() {
				for range 20 {
					clock.Advance(50 * time.Millisecond)
					time.Sleep(time.Millisecond) // what was sent arrives
				}
			}
			tup := c.Tuple()
			toClient := segmentOf(tup.Remote, tup.Local, 1, c.f.sent.Load()+1<<31, packet.FlagACK, timestamps(), nil)
			toServer := segmentOf(tup.Local, tup.Remote, 1, s.f.sent.Load()+1<<31, packet.FlagACK, timestamps(), nil)
			answers := func() {
				w.wire.B().Send(append([]byte(nil), toClient...))
				w.wire.A().Send(append([]byte(nil), toServer...))
				second()
			}
			for range int(segment.StrangeTime/time.Second) + 3 {
				answers()
				for _, conn := range []*Conn{c, s} {
					within(t, "the peer has answered", func() bool {
						if conn.f.strange.Count() == 0 {
							return true
						}
						answers() // gVisor answers one question in half a second of this quick clock
						return false
					})
					_, err := conn.Read(make([]byte, 1))
					require.ErrorIs(t, err, ErrWouldBlock)
				}
			}
			say(t, c, s, 10)
			w.wire.B().Impair(wire.Impairment{Filter: func(p []byte) []byte {
				if bytes.Equal(p, toClient) {
					return p
				}
				return nil // the peer has gone silent
			}})
			within(t, "reset", func() bool {
				w.wire.B().Send(append([]byte(nil), toClient...))
				second()
				_, err := c.Read(make([]byte, 1))
				return !errors.Is(err, ErrWouldBlock)
			})
			readError(t, c, syscall.ECONNRESET)
			require.EqualValues(t, 1, w.gw.Stats().Strangers)
			require.Zero(t, w.srv.Stats().Strangers)
		})
	}
}

// A peer that says something with each acknowledgement is there, too.
func TestStrangersBesideATalker(t *testing.T) {
	clock := faketime.NewManualClock()
	b := newBench(t, Config{clock: clock})
	c := b.accept(1, 100)
	iss := c.ServerISN()
	for seq, end := uint32(101), uint32(101+40); seq < end; seq++ {
		b.fromClient(1, 9000, iss+1<<31, packet.FlagACK, 0, "")
		b.fromClient(1, seq, iss+1, packet.FlagACK, packet.RoleConfirm, "x")
		within(t, "it comes", func() bool { n, _ := c.Read(make([]byte, 1)); return n == 1 })
		clock.Advance(time.Second)
	}
	require.Zero(t, b.s.Stats().Strangers)
}

// TestImpossibleAcknowledgements: bytes and a FIN that acknowledge what was never sent, or what was long
// ago, are not the peer's. A mini socket does not grow by them.
func TestImpossibleAcknowledgements(t *testing.T) {
	for name, connect := range map[string]func(w *world) (c, s *Conn){
		"mini sockets": (*world).minis,
		"endpoints":    (*world).endpoints,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			c, s := connect(w)
			say(t, c, s, 100)
			say(t, s, c, 100)
			within(t, "acked", func() bool { return s.f.una.Load() == s.f.sent.Load() && c.f.una.Load() == c.f.sent.Load() })
			tup, grown, seq := c.Tuple(), w.srv.Stats().Grown, s.f.awaited.Load()
			for _, ack := range []uint32{s.f.sent.Load() + 1, s.f.sent.Load() + 1<<30, s.f.sent.Load() + 1<<31, s.f.una.Load() - oldestACK - 1} {
				forge := func(seq uint32, flags byte, payload string) {
					w.wire.A().Send(segmentOf(tup.Local, tup.Remote, seq, ack, packet.FlagACK|flags, timestamps(), []byte(payload)))
				}
				forge(seq, 0, "FORGED")
				forge(seq+50, packet.FlagPSH, "FORGED")
				forge(seq, packet.FlagFIN, "")
				forge(seq+100, packet.FlagFIN, "FORGED")
				forge(seq, 0, strings.Repeat("FORGED", 7000))
			}
			within(t, "all have come", func() bool { return w.srv.Stats().Impossible == 20 })
			_, err := s.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrWouldBlock)
			require.Equal(t, grown, w.srv.Stats().Grown)
			say(t, c, s, 200)
			say(t, s, c, 200)
			require.NoError(t, c.CloseWrite())
			within(t, "the end", func() bool { _, err := s.Read(make([]byte, 1)); return errors.Is(err, io.EOF) })
		})
	}
}

// TestForgedSegments: no segment that a host which does not see the connection can make ends it or says
// anything in it, at the ends of the ranges that numbers are compared in least of all.
func TestForgedSegments(t *testing.T) {
	for name, connect := range map[string]func(w *world) (c, s *Conn){
		"mini sockets": (*world).minis,
		"endpoints":    (*world).endpoints,
	} {
		t.Run(name, func(t *testing.T) {
			var o worldOptions
			if name == "mini sockets" { // an acknowledgement that is late takes an endpoint
				o.clock = slowClock(t)
			}
			w := newWorld(t, o)
			c, s := connect(w)
			say(t, c, s, 100)
			say(t, s, c, 100)
			s.MarkCarrying()
			within(t, "acked", func() bool { return s.f.una.Load() == s.f.sent.Load() && c.f.una.Load() == c.f.sent.Load() })
			tup, seq, ack := c.Tuple(), s.f.awaited.Load(), s.f.sent.Load()
			far := []uint32{1 << 20, 16 << 20, 1<<31 - 1, 1 << 31, 1<<31 + 1, math.MaxUint32 - 16<<20}
			for _, flags := range []byte{0, packet.FlagRST, packet.FlagSYN, packet.FlagFIN, packet.FlagURG, packet.FlagPSH} {
				for _, payload := range []string{"", "F", strings.Repeat("FORGED", 200)} {
					for _, away := range far {
						for _, other := range append(far, 0, 1, math.MaxUint32) {
							w.wire.A().Send(segmentOf(tup.Local, tup.Remote, seq+away, ack+other, flags|packet.FlagACK, timestamps(), []byte(payload)))
							if flags&packet.FlagRST == 0 {
								w.wire.A().Send(segmentOf(tup.Local, tup.Remote, seq+other, ack+away, flags|packet.FlagACK, timestamps(), []byte(payload)))
							}
						}
					}
				}
				say(t, c, s, 200)
				say(t, s, c, 200)
				seq, ack = s.f.awaited.Load(), s.f.sent.Load()
			}
			if name == "mini sockets" {
				require.Zero(t, w.srv.Stats().Grown)
			}
		})
	}
}

// An old duplicate reaches no endpoint, whatever its sequence number, and is acknowledged. A retransmission has the timestamp
// of the moment, which may be that of the last segment.
func TestOldDuplicate(t *testing.T) {
	b := newBench(t, Config{})
	c := b.accept(1, 100)
	c.grown(t)
	const ack = cookieISS + 1
	recent := uint32(1 << 20)
	send := func(seq, stamp uint32, flags byte, payload string) {
		t.Helper()
		opts := packet.AppendTimestamps(nil, stamp, 0)
		b.link.Inject(segmentOf(clientAddr(1), serverAddr(false), seq, ack, flags, opts, []byte(payload)))
	}
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		readFull(t, c, got)
		require.Equal(t, want, string(got))
	}
	acked := func(seq uint32) {
		t.Helper()
		for _, seg := b.next(); seg.Ack() != seq; {
			_, seg = b.next()
		}
	}
	send(101, recent, packet.FlagACK, "new")
	read("new")
	acked(104)
	send(104, recent-1, packet.FlagACK, "old")
	within(t, "it is judged", func() bool { return b.s.Stats().OldStamps == 1 })
	acked(104)
	send(104, recent-1, packet.FlagACK|packet.FlagFIN, "")
	within(t, "it is judged", func() bool { return b.s.Stats().OldStamps == 2 })
	send(105, recent, packet.FlagACK, "eird") // after a gap
	send(104, recent, packet.FlagACK, "w")    // a retransmission
	read("weird")
	send(104, recent, packet.FlagACK, "weird") // once more
	send(109, recent+1, packet.FlagACK, "!")
	read("!")
	require.EqualValues(t, 2, b.s.Stats().OldStamps)
	send(110, 1, packet.FlagRST|packet.FlagACK, "") // RFC 7323 5.2: resets are exact
	within(t, "reset", c.Over)
}
