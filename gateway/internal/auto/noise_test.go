package auto

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
)

// noisy is what becomes of bulk whose connections differ by chance.
type noisy struct {
	carried float64 // the part of the work that was carried
	lost    float64
	changes float64 // of the verdict, a day
}

// simulateNoise lets a service run for some hours, with several seeds.
func simulateNoise(ratio, noise float64, hours time.Duration, change func(*simulation)) (sum noisy) {
	const seeds = 2
	for seed := range uint64(seeds) {
		s := newSimulation(work{"noise", 4, 1 << 30, 128 << 10, 4 * time.Second, 0, ratio, 8 * time.Millisecond}, config.CarrierShm, true, false, seed)
		s.noise = noise
		change(s)
		s.run(hours * time.Hour)
		sum.carried += s.byCarrier.Seconds() / s.native.Seconds() / seeds
		sum.lost += s.lost() / seeds
		sum.changes += float64(s.changes) / seeds * 24 / float64(hours)
	}
	return sum
}

// TestAutoNoise: where carrying wins or loses by a third, the service is carried, or native,
// nearly all the time, whatever chance does to single connections. Where it is less,
// carrying costs no more than samples may.
func TestAutoNoise(t *testing.T) {
	for _, ratio := range []float64{0.7, 0.9, 1, 1.1, 1.3, 2} {
		for _, noise := range []float64{0.1, 0.2, 0.3} {
			t.Run(fmt.Sprintf("ratio=%v/noise=%v", ratio, noise), func(t *testing.T) {
				n := simulateNoise(ratio, noise, 3, func(*simulation) {})
				t.Logf("%5.1f %% carried, %5.2f %% lost, %.1f changes a day", 100*n.carried, 100*n.lost, n.changes)
				require.LessOrEqual(t, n.lost, most)
				if ratio >= 1.3 {
					require.GreaterOrEqual(t, n.carried, 0.9)
				}
				if ratio <= 0.7 {
					require.LessOrEqual(t, n.carried, 0.05)
				}
			})
		}
	}
}

// TestAutoLongConnections: connections that last minutes, one at a time, are compared as others are, though those that
// are left native end later than such as do not end are given up.
func TestAutoLongConnections(t *testing.T) {
	n := simulateNoise(2, 0.1, 48, func(s *simulation) {
		s.parallel, s.takes, s.bytes = 1, 5*time.Minute, 64<<30
	})
	t.Logf("%5.1f %% carried, %5.2f %% lost, %.1f changes a day", 100*n.carried, 100*n.lost, n.changes)
	require.GreaterOrEqual(t, n.carried, 0.6)
}

// TestAutoProbes: probes of a service's health beside bulk, which end first and move
// nothing, do not make the verdict about it.
func TestAutoProbes(t *testing.T) {
	for name, tc := range map[string]struct {
		ratio         float64
		probes, pause time.Duration
		parallel      int
		takes         time.Duration
	}{
		"a probe each 5 s beside a stream":       {2, 5 * time.Second, 0, 1, 10 * time.Second},
		"a probe each second beside streams":     {2, time.Second, 0, 4, 20 * time.Second},
		"a probe each 5 s, bulk once a minute":   {2, 5 * time.Second, 50 * time.Second, 1, 10 * time.Second},
		"a probe each 5 s, bulk in five minutes": {2, 5 * time.Second, 290 * time.Second, 1, 10 * time.Second},
		"slower carried":                         {0.5, 5 * time.Second, 0, 1, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			n := simulateNoise(tc.ratio, 0.2, 8, func(s *simulation) {
				s.probes, s.pause, s.parallel, s.takes = tc.probes, tc.pause, tc.parallel, tc.takes
				s.bytes = uint64(tc.takes.Seconds() * (256 << 20))
			})
			t.Logf("%5.1f %% carried, %5.2f %% lost, %.1f changes a day", 100*n.carried, 100*n.lost, n.changes)
			require.LessOrEqual(t, n.lost, most)
			if tc.ratio > 1 {
				require.GreaterOrEqual(t, n.carried, 0.75)
			}
		})
	}
}
