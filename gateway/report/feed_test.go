package report

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestFeedLoses: a reader hears of every event, or in its place of how many are missing
// there, also of the last ones.
func TestFeedLoses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFeed()
		r, leave, ok := f.Read()
		require.True(t, ok)
		defer leave()
		var told, heard, missed uint64
		hear := func() {
			e := <-r.Events
			r.Drained()
			if e.Event == EventLost {
				require.Positive(t, e.Lost)
				heard += e.Lost
				return
			}
			require.Equal(t, heard, e.Conn.ID)
			heard++
		}
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			for range rapid.IntRange(0, feedRoom+feedRoom/2).Draw(t, "told") {
				f.Tell(EventNative, ConnInfo{ID: told})
				told++
			}
			n := rapid.Uint64Range(0, 3).Draw(t, "missed")
			missed += n
			told += n
			require.Equal(t, n, f.Missed(missed))
			require.Zero(t, f.Missed(missed))
			for range min(len(r.Events), rapid.IntRange(0, feedRoom+1).Draw(t, "heard")) {
				hear()
			}
		}
		for len(r.Events) > 0 {
			hear()
		}
		require.Equal(t, told, heard)
	})
}
