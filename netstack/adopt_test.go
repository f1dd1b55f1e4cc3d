package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/packet"
)

// The peer reads our windows with the scale of the application's SYN, which is
// not gVisor's.
func TestWindowScale(t *testing.T) {
	for _, ws := range []byte{0, 2, 7, 10, 14} {
		t.Run(fmt.Sprint(ws), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{seed: 7, editSYN: func(p []byte) []byte { return scaled(p, ws) }})
			w.wire.B().Impair(wire.Impairment{Loss: 0.005})
			c, s := w.connect(false)
			require.EqualValues(t, ws, c.f.scale())
			transfer(t, s, c, 1<<20)
			transfer(t, c, s, 100000)
			if ws == 0 || ws == 10 {
				stalledReader(t, s, c)
			}
		})
	}
}

// scaled returns the SYN pkt with another window scale.
func scaled(pkt []byte, ws byte) []byte {
	return rebuild(pkt, func(t packet.TCP) []byte {
		for _, o := range t.Options().All() {
			if o.Kind() == packet.KindWindowScale {
				o.Value()[0] = ws
			}
		}
		return t[packet.TCPMinLen:]
	})
}

// stalledReader fills the window to zero and then reads everything.
func stalledReader(t *testing.T, from, to *Conn) {
	t.Helper()
	sent := 0
	for idle := 0; idle < 3; {
		n, err := from.Write(make([]byte, 64<<10))
		sent += n
		if errors.Is(err, ErrWouldBlock) {
			idle++
			time.Sleep(30 * time.Millisecond)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	buf := make([]byte, 64<<10)
	for sent > 0 {
		n, err := to.ReadContext(ctx, buf)
		require.NoError(t, err)
		sent -= n
	}
}

// halfClose closes one direction, uses the other, then closes that.
func halfClose(t *testing.T, c, s *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	buf := make([]byte, 10)
	require.NoError(t, c.CloseWrite())
	_, err := s.ReadContext(ctx, buf)
	require.ErrorIs(t, err, io.EOF)
	transfer(t, s, c, 100000)
	_, err = c.Write(buf)
	require.ErrorIs(t, err, syscall.EPIPE)
	require.NoError(t, s.CloseWrite())
	_, err = c.ReadContext(ctx, buf)
	require.ErrorIs(t, err, io.EOF)
}

// The peer's accept is stripped on its way: the application's kernel completes
// the handshake, and the server learns that no confirmation comes.
func TestStrippedAccept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.wire.B().Impair(wire.Impairment{Filter: func(p []byte) []byte { return without(p, packet.KindExperiment) }})
	got := make(chan *gonet.TCPConn, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c, _ := w.dial(ctx, serverAddr(false))
		got <- c
	}()
	s := w.acceptedConn()
	c := <-got
	require.NotNil(t, c)
	defer c.Close()
	require.Equal(t, ConfirmNo, s.Confirmed())
	_, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	buf := make([]byte, 10)
	n, err := s.ReadContext(context.Background(), buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf[:n]))
}

// The client's confirmation is stripped on its way, by a box that leaves SYNs alone. If it
// strips bare ACKs only, data turns the answer.
func TestStrippedConfirm(t *testing.T) {
	for _, bareOnly := range []bool{false, true} {
		t.Run(fmt.Sprintf("bare only=%v", bareOnly), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.wire.A().Impair(wire.Impairment{Filter: func(p []byte) []byte {
				q, tcp, ok := parseTCP(p)
				if ok && tcp.Flags()&packet.FlagSYN == 0 && (!bareOnly || len(q.Payload) == len(tcp)) {
					return without(p, packet.KindExperiment)
				}
				return p
			}})
			c, s := w.connect(bareOnly)
			require.Equal(t, ConfirmNo, s.Confirmed())
			transfer(t, c, s, 1000)
			want := ConfirmNo
			if bareOnly {
				want = ConfirmYes
			}
			require.Equal(t, want, s.Confirmed())
		})
	}
}

func writeAll(c *Conn, s string) error {
	_, err := c.WriteContext(context.Background(), []byte(s))
	return err
}

func readFull(t *testing.T, c *Conn, p []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for done := 0; done < len(p); {
		n, err := c.ReadContext(ctx, p[done:])
		require.NoError(t, err)
		done += n
	}
}

// A SYN-ACK that arrives again after adoption gets a challenge ACK.
func TestRepeatedSYNACK(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	var synack []byte
	w.wire.B().Impair(wire.Impairment{Filter: func(p []byte) []byte {
		if _, tcp, ok := parseTCP(p); ok && tcp.Flags()&packet.FlagSYN != 0 {
			synack = append([]byte(nil), p...)
		}
		return p
	}})
	c, s := w.connect(false)
	transfer(t, c, s, 1000)
	within(t, "acked", func() bool { return c.f.una.Load() == c.f.sent.Load() })
	acks := w.tap(w.wire.A())
	w.gwIn.Inject(synack)
	p := <-acks
	_, tcp, ok := parseTCP(p)
	require.True(t, ok)
	require.EqualValues(t, packet.FlagACK, tcp.Flags())
	require.Equal(t, c.ISN()+1001, tcp.Seq())
	transfer(t, s, c, 1000)
}

// tap copies what leaves an end.
func (w *world) tap(e *wire.End) <-chan []byte {
	ch := make(chan []byte, 1000)
	e.Impair(wire.Impairment{Filter: func(p []byte) []byte {
		select {
		case ch <- append([]byte(nil), p...):
		default:
		}
		return p
	}})
	return ch
}

func readError(t *testing.T, c *Conn, want error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.ReadContext(ctx, make([]byte, 1))
	require.ErrorIs(t, err, want)
}

// The reset of an adopted leg is in the application's sequence space.
func TestAbortIsTranslated(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("v6=%v", v6), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			c, s := w.connect(v6)
			transfer(t, c, s, 777)
			out := w.tap(w.wire.A())
			c.Abort()
			for p := range out {
				_, tcp, ok := parseTCP(p)
				require.True(t, ok)
				if tcp.Flags()&packet.FlagRST != 0 {
					require.Equal(t, c.ISN()+778, tcp.Seq())
					break
				}
			}
			readError(t, s, syscall.ECONNRESET)
			require.Zero(t, w.gw.Stats().Flows)
			require.Equal(t, 1, w.gw.Stats().Dead)
		})
	}
}

// A forgotten leg is silent; only a bare ACK of the peer is told, exactly.
func TestForget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	transfer(t, c, s, 777)
	transfer(t, s, c, 100)
	within(t, "acked", func() bool { return s.f.una.Load() == s.f.sent.Load() })
	out := w.tap(w.wire.A())
	c.Forget()
	require.NoError(t, writeAll(s, "late"))
	within(t, "late data dropped", func() bool { return w.gw.Stats().LateSegments > 0 })
	require.Empty(t, out)
	require.Zero(t, w.gw.Stats().LateResets)

	// A SYN makes the server send a challenge ACK, whose answer ends it.
	s.MarkCarrying()
	w.wire.A().Send(makeSYNOf(c.Tuple(), 5, 0))
	readError(t, s, syscall.ECONNRESET)
	require.EqualValues(t, 1, w.gw.Stats().LateResets)
}

// Two connections from one local port to different peers, as the kernel's port
// allocation makes them.
func TestSameLocalPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for i := range 2 {
		syn := makeSYNTo(40000, uint16(testPort+i), 1000, packet.RoleOffer)
		p, tcp, _ := parseTCP(syn)
		w.mu.Lock()
		w.syns[outboundKey(p.Header, tcp)] = syn
		w.mu.Unlock()
		w.answer(syn)
		c, s := w.adoptedConn(), w.acceptedConn()
		transfer(t, c, s, 1000)
	}
	require.Equal(t, 2, w.gw.Stats().Flows)
}

// The same tuple again, at once.
func TestReuseOfTuple(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	for i := range 20 {
		syn := makeSYN(i%2 == 1, 40000, uint32(1000+i*100000), packet.RoleOffer)
		p, tcp, _ := parseTCP(syn)
		w.mu.Lock()
		w.syns[outboundKey(p.Header, tcp)] = syn
		w.mu.Unlock()
		w.answer(syn)
		c, s := w.adoptedConn(), w.acceptedConn()
		transfer(t, c, s, 1000)
		if i%3 == 0 { // the server finds the old connection in the way
			c.Forget()
			continue
		}
		c.Abort()
		readError(t, s, syscall.ECONNRESET)
		s.Abort()
	}
}

func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	syn := makeSYN(false, 40000, 1000, packet.RoleOffer)
	for _, bad := range [][2][]byte{
		{nil, nil},
		{syn, syn},
		{syn, makeSYNACK(syn, 77, packet.RoleAccept, testNonce+1, 1001)},
		{syn, makeSYNACK(syn, 77, packet.RoleOffer, testNonce, 1001)},
		{syn, makeSYNACK(syn, 77, packet.RoleAccept, testNonce, 1002)},
		{makeSYN(true, 40000, 1000, packet.RoleOffer), makeSYNACK(syn, 77, packet.RoleAccept, testNonce, 1001)},
	} {
		_, err := w.gw.Adopt(bad[0], bad[1], 0)
		require.ErrorIs(t, err, ErrPacket)
	}
	require.Zero(t, w.gw.Stats().Flows)
	c, err := w.gw.Adopt(syn, makeSYNACK(syn, 77, packet.RoleAccept, testNonce, 1001), 0)
	require.NoError(t, err)
	c.Forget()
	require.NoError(t, w.gw.Close())
	_, err = w.gw.Adopt(syn, makeSYNACK(syn, 77, packet.RoleAccept, testNonce, 1001), 0)
	require.ErrorIs(t, err, net.ErrClosed)
}

// A repeated SYN-ACK may make the owner adopt twice; the first stays.
func TestAdoptTwice(t *testing.T) {
	b := newBench(t, Config{})
	syn := makeSYN(false, 1, 100, packet.RoleOffer)
	synack := makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101)
	c, err := b.s.Adopt(syn, synack, 0)
	require.NoError(t, err)
	_, err = b.s.Adopt(syn, synack, 0)
	require.ErrorIs(t, err, ErrAdopted)
	n, err := c.Write([]byte("hello"))
	require.NoError(t, err)
	require.Equal(t, 5, n)
	newer := makeSYN(false, 1, 9000, packet.RoleOffer) // another connection takes over
	d, err := b.s.Adopt(newer, makeSYNACK(newer, 5000, packet.RoleAccept, testNonce, 9001), 0)
	require.NoError(t, err)
	_, err = c.Write([]byte("hello"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.Equal(t, 1, b.s.Stats().Flows)
	d.Forget()
}

// Adoption takes a tuple over from a server flow.
func TestAdoptOverServerFlow(t *testing.T) {
	b := newBench(t, Config{})
	b.accept(1, 100)
	syn := makeSYNOf(Tuple{Local: serverAddr(false), Remote: makeTuple(1).Local}, 7, packet.RoleOffer)
	c, err := b.s.Adopt(syn, makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 8), 0)
	require.NoError(t, err)
	require.False(t, c.Server())
	require.Equal(t, ConfirmYes, c.Confirmed())
	require.Equal(t, 1, b.s.Stats().Flows)
	c.Abort()
}

// With the round trip known, nothing is sent twice on a slow and clean path. On a busy machine something may come late,
// so one connection of several has to show it.
func TestRoundTripSeed(t *testing.T) {
	t.Parallel()
	imp := wire.Impairment{Delay: 60 * time.Millisecond}
	var repeated uint64
	for begun := time.Now(); ; {
		w := newWorld(t, worldOptions{})
		w.wire.A().Impair(imp)
		w.wire.B().Impair(imp)
		w.server.rtt = 2 * imp.Delay
		w.answer = func(syn []byte) {
			time.AfterFunc(imp.Delay, func() { w.wire.B().Send(cookieAnswer(syn)) })
		}
		c, s := w.connect(false)
		transfer(t, c, s, 1000)
		transfer(t, s, c, 1000)
		require.GreaterOrEqual(t, s.SYNRTT(), 100*time.Millisecond)
		repeated = w.gw.Stats().Retransmits + w.srv.Stats().Retransmits
		if repeated == 0 || time.Since(begun) > patience {
			break
		}
	}
	require.Zero(t, repeated)
}
