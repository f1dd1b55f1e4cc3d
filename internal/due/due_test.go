package due

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A queue gives what a stable sort by time gives, whatever comes meanwhile.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		type entry struct {
			at   time.Duration
			what int
		}
		var model []entry
		for i := range rapid.IntRange(0, 60).Draw(t, "steps") {
			if len(model) > 0 && rapid.IntRange(0, 2).Draw(t, "pop") == 0 {
				at, ok := q.Next()
				require.True(t, ok)
				require.Equal(t, model[0], entry{at, q.Pop()})
				model = model[1:]
			} else {
				e := entry{time.Duration(rapid.IntRange(-3, 3).Draw(t, "at")), i}
				q.Push(e.at, e.what)
				model = append(model, e)
				slices.SortStableFunc(model, func(a, b entry) int { return int(a.at - b.at) })
			}
			require.Equal(t, len(model), q.Len())
		}
	})
}

// Timers are taken in order, each once after it was set last, and none that was stopped.
func TestTimers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var set Timers[int]
		all := make([]Timer[int], 8)
		model := map[int]time.Time{}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			n, at := rapid.IntRange(0, len(all)-1).Draw(t, "timer"), rapid.IntRange(-1, 9).Draw(t, "at")
			if rapid.Bool().Draw(t, "take") {
				now := time.Unix(int64(at), 0)
				for got := set.Take(now); got != nil; got = set.Take(now) {
					require.False(t, model[got.What].After(now))
					for _, other := range model {
						require.False(t, other.Before(model[got.What]))
					}
					delete(model, got.What)
				}
				require.True(t, set.Next().IsZero() || set.Next().After(now))
			} else if all[n].What = n; at < 0 {
				set.Set(&all[n], time.Time{})
				delete(model, n)
			} else {
				model[n] = time.Unix(int64(at), 0)
				set.Set(&all[n], model[n])
			}
			require.Equal(t, len(model), set.Len())
			for i := range all {
				_, is := model[i]
				require.Equal(t, is, all[i].Pending())
			}
		}
	})
}
