package mirror_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBytesBothWays: all sizes, rings that are full and empty, readers and writers that pause.
func TestBytesBothWays(t *testing.T) {
	for name, kind := range kinds {
		for _, tc := range []struct {
			name    string
			order   uint32
			largest int
			total   uint64
			pause   time.Duration
		}{
			{"bulk", 20, 99991, 32 << 20, 0},
			{"small ring", 16, 99991, 16 << 20, 0},
			{"small pieces", 18, 300, 1 << 20, 0},
			{"pauses", 16, 9999, 1 << 20, 3 * time.Millisecond},
		} {
			t.Run(name+"/"+tc.name, func(t *testing.T) {
				sides := connect(t, newGateways(t), kind, tc.order)
				pause := func() {
					if tc.pause > 0 && rand.IntN(10) == 0 {
						time.Sleep(rand.N(tc.pause))
					}
				}
				require.NoError(t, errors.Join(exchange(sides, tc.total, tc.largest, pause)...))
				for _, s := range sides {
					r := s.Report()
					t.Logf("%+v", r)
					require.Equal(t, [3]uint64{tc.total, tc.total, 1 << tc.order}, [3]uint64{r.Sent, r.Received, r.RingBytes})
					require.True(t, r.Carried && r.Carrier == kind)
				}
			})
		}
	}
}
