package rsocket

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
)

// pattern is what travels: byte i of a direction is pattern[i % len(pattern)]. The length has no factor in common with
// any ring.
var pattern = func() []byte {
	b := make([]byte, 99991)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(b)
	return b
}()

func stockEndpoints(t require.TestingT, cfg EndpointConfig) (*owner, *owner, *world) {
	a, b, w := connectEndpoints(t, [2]EndpointConfig{cfg, cfg}, [2]bool{})
	settleOwners(a, b)
	a.qp.ctrls, b.qp.ctrls = 0, 0
	return a, b, w
}

// Large writes take whole grants, whatever the size of the pieces they were produced in.
func TestPumpTakesWholeGrants(t *testing.T) {
	cfg := EndpointConfig{RingSize: 256 << 10, SendBuffer: 1 << 20}
	a, b, w := stockEndpoints(t, cfg)
	for range 16 {
		require.Equal(t, 64<<10, a.produce(64<<10))
	}
	require.Equal(t, 256<<10, a.pump(), "two grants of half a ring")
	require.Len(t, a.qp.sends, 2)
	for settleOwners(a, b) || a.pump() > 0 {
	}
	require.Zero(t, a.Unposted())
	w.close(t, a, b)
}

// The first two small messages go at once; what follows gathers until one of them is through.
func TestSmallMessagesGather(t *testing.T) {
	a, b, w := stockEndpoints(t, EndpointConfig{})
	for range 100 {
		require.Equal(t, 10, a.produce(10))
		a.pump()
	}
	require.Len(t, a.qp.sends, 2)
	require.Equal(t, 980, a.Unposted())
	require.True(t, a.qp.transfer())
	require.True(t, a.poll())
	require.Equal(t, 980, a.pump())
	require.Len(t, a.qp.sends, 2)
	require.Equal(t, 64<<10, a.produce(64<<10))
	require.Equal(t, 64<<10, a.pump(), "a large message waits for nobody")
	settleOwners(a, b)
	w.close(t, a, b)
}

// The end waits after what was produced, and lets nothing gather any more.
func TestShutdownBehindProduced(t *testing.T) {
	for _, disconnect := range []bool{false, true} {
		a, b, w := stockEndpoints(t, EndpointConfig{RingSize: 4096, SendBuffer: 16 << 10})
		require.Equal(t, 16<<10, a.produce(16<<10))
		require.Equal(t, 4096, a.pump())
		if disconnect {
			require.NoError(t, a.Disconnect())
		}
		require.NoError(t, a.Shutdown())
		require.Equal(t, StateOpen, a.State(), "bytes are left to send")
		for settleOwners(a, b) || a.pump() > 0 {
		}
		require.Equal(t, uint64(16<<10), b.ConsumedOffset())
		require.True(t, b.PeerShut())
		if disconnect {
			require.Equal(t, StateDisconnected, b.State())
			require.True(t, a.Settled())
		} else {
			require.Equal(t, StateRemoteShut, b.State())
		}
		w.close(t, a, b)
	}

	a, b, w := stockEndpoints(t, EndpointConfig{})
	for range 5 {
		a.produce(1)
		a.pump()
	}
	require.Equal(t, 3, a.Unposted())
	require.NoError(t, a.Shutdown())
	require.Zero(t, a.Unposted())
	settleOwners(a, b)
	require.Equal(t, uint64(5), b.ConsumedOffset())
	w.close(t, a, b)
}

func TestInline(t *testing.T) {
	a, b, w := stockEndpoints(t, EndpointConfig{Inline: 64})
	require.Equal(t, 64, a.write(64))
	require.Equal(t, 1, a.qp.inlines)
	require.Equal(t, 65, a.write(65))
	require.Equal(t, 64, a.produce(64))
	require.Equal(t, 64, a.pump())
	require.Equal(t, 2, a.qp.inlines)
	settleOwners(a, b)
	require.Equal(t, uint64(193), b.ConsumedOffset())
	w.close(t, a, b)
	require.Equal(t, 64, EndpointConfig{Inline: 64}.QPCap().MaxInline)
}

func TestPumpAndCommitDoNotMix(t *testing.T) {
	a, b, w := stockEndpoints(t, EndpointConfig{})
	require.Equal(t, 10, a.produce(10))
	require.Empty(t, a.WriteSpan(), "something else comes first")
	require.Equal(t, BlockedSndbuf, a.Blocked())
	require.ErrorIs(t, a.Commit(1), ErrBlocked)
	require.ErrorIs(t, a.SendRing().Produce(-1), rmb.ErrOverrun)
	require.ErrorIs(t, a.SendRing().Produce(1<<30), rmb.ErrOverrun)
	require.Equal(t, 10, a.pump())
	require.NotEmpty(t, a.WriteSpan())
	settleOwners(a, b)
	w.close(t, a, b)

	a, b, w = gatewayEndpoints(t, false, false)
	_, err := a.Pump()
	require.ErrorIs(t, err, ErrState, "there is no buffer to pump from")
	require.Empty(t, a.SendRing().Span())
	w.close(t, a, b)
}

// One goroutine produces, another one owns the endpoints: for the race detector, and for lost wake-ups.
func TestProducerApart(t *testing.T) {
	const total = 2 << 20
	a, b, w := stockEndpoints(t, EndpointConfig{RingSize: 8 << 10, SendBuffer: 3000})
	ring, writable, kick := a.SendRing(), make(chan struct{}, 1), make(chan struct{}, 1)
	signal := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	var producer sync.WaitGroup
	producer.Go(func() {
		for off := 0; off < total; {
			span := ring.Span()
			if len(span) == 0 {
				<-writable
				continue
			}
			n := min(len(span), 1+off%97, total-off)
			for i := range n {
				span[i] = pattern[(off+i)%len(pattern)]
			}
			_ = ring.Produce(n)
			off += n
			if ring.Wanting() {
				signal(kick)
			}
		}
	})
	for b.ConsumedOffset() < total {
		for a.qp.transfer() || b.qp.transfer() {
		}
		for wc, ok := a.qp.poll(); ok; wc, ok = a.qp.poll() {
			a.HandleWC(&wc)
			if ring.Free() > 0 {
				signal(writable)
			}
			a.pump()
		}
		for b.poll() {
		}
		span := b.ReadSpan()
		for i, c := range span {
			if at := (int(b.ConsumedOffset()) + i) % len(pattern); c != pattern[at] {
				require.Equal(t, pattern[at], c)
			}
		}
		require.NoError(t, b.Consume(len(span)))
		if len(span) == 0 && len(a.qp.cq)+len(b.qp.cq)+len(a.qp.sends)+len(b.qp.sends) == 0 && b.ConsumedOffset() < total {
			<-kick
			a.pump()
		}
	}
	producer.Wait()
	w.close(t, a, b)
}
