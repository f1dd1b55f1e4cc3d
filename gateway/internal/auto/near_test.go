package auto

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// nearness is a steering that keeps which peers are near.
type nearness map[netip.Addr]time.Duration

func (nearness) Services() ([]ebpf.Service, error) { return nil, nil }
func (nearness) SetService(ebpf.Service) error     { return nil }
func (nearness) FlushServices() (int, error)       { return 0, nil }
func (n nearness) SetNear(a netip.Addr, ttl time.Duration) error {
	n[a] = ttl
	return errors.New("which the book survives")
}

// TestMet: memory that two gateways share shows that they are under one kernel; any other
// carrier shows that the address is not, or not any more.
func TestMet(t *testing.T) {
	told := nearness{}
	b := NewBook(told, time.Minute, true, slog.New(slog.DiscardHandler))
	a, now := netip.MustParseAddr("fd00::2"), autoClock
	b.Met(a, config.CarrierSoft, now)
	b.Met(a, config.CarrierRelay, now)
	require.Empty(t, told)
	b.Met(a, config.CarrierShm, now)
	require.Equal(t, nearness{a: nearFor}, told)
	delete(told, a)
	b.Met(a, config.CarrierShm, now.Add(nearAgain-1))
	require.Empty(t, told, "it knows")
	b.Met(a, config.CarrierShm, now.Add(nearAgain))
	require.Equal(t, nearness{a: nearFor}, told)
	b.Met(a, config.CarrierRelay, now.Add(nearAgain))
	require.Equal(t, nearness{a: nearFor}, told, "that says nothing of kernels")
	b.Met(a, config.CarrierHW, now.Add(nearAgain))
	require.Equal(t, nearness{a: 0}, told)
	b.Met(a, config.CarrierShm, now.Add(nearAgain))
	require.Equal(t, nearness{a: nearFor}, told)

	require.NoError(t, b.Flush())
	b.Met(a, config.CarrierShm, now.Add(nearAgain))
	require.Len(t, b.learner.peers, 1, "met anew")
	b.learner.limit = 64
	for i := range 1000 {
		b.Met(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), config.CarrierShm, now)
		require.LessOrEqual(t, len(b.learner.peers), 64)
	}
	(*Book)(nil).Met(a, config.CarrierShm, now)
}

// TestLooks: what native connections moved bounds what carrying them could have gained.
func TestLooks(t *testing.T) {
	for name, tc := range map[string]struct {
		seen looks
		pays bool
	}{
		"short connections":          {looks{conns: 1000, bytes: 400_000, segments: 2000}, false},
		"files of 1 MB":              {looks{conns: 10, bytes: 10 << 20, segments: 7300}, false},
		"much in small messages":     {looks{conns: 1, bytes: 1 << 30, segments: 1 << 24}, false},
		"bulk":                       {looks{conns: 1, bytes: 1 << 30, segments: 1 << 20}, true},
		"bulk in the largest pieces": {looks{conns: 1, bytes: 1 << 30, segments: 1 << 14}, true},
		"control and data":           {looks{conns: 2, bytes: 40 << 20, segments: 30_000}, true},
		"nothing":                    {looks{}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.pays, tc.seen.best() >= 1, tc.seen.best()) })
	}
}

// TestAutoSampleTellsNothing: samples that fail are asked for ever more seldom.
func TestAutoSampleTellsNothing(t *testing.T) {
	l, now := newLearner(time.Minute), autoClock
	l.meet(autoAt.Addr(), config.CarrierShm, now)
	c := ebpf.Service{State: ebpf.ServiceSampling}
	var asks []time.Duration
	last := now
	for range 3600 {
		now = now.Add(time.Second)
		c = ended(c, 1<<30, time.Second)
		if do, tell := l.learnNative(autoAt, c, now); tell {
			require.Equal(t, ebpf.Service{Addr: autoAt.Addr(), Port: autoAt.Port(), State: ebpf.ServiceSampling, Tokens: 1, TTL: autoAsk}, do)
			asks, last = append(asks, now.Sub(last)), now
		}
	}
	require.Equal(t, []time.Duration{30, 60, 120, 240, 480, 480, 480, 480, 480, 480}, seconds(asks[1:]), "behind the first")
	require.InDelta(t, 81, asks[0].Seconds(), 2, "2 s of 81 that a sample is foreseen to lose")
}

func seconds(list []time.Duration) (out []time.Duration) {
	for _, d := range list {
		out = append(out, d/time.Second)
	}
	return out
}
