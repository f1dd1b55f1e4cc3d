package loop

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// lostCQ is a completion queue that has overrun: it holds nothing, and says so for ever.
type lostCQ struct{ verbs.CQ }

func (lostCQ) Poll([]verbs.WC) (int, error) { return 0, verbs.ErrCQOverrun }

// TestQueueFailsOnce: a queue that has failed is in the log once, however often the shard
// turns.
func TestQueueFailsOnce(t *testing.T) {
	var log bytes.Buffer
	s, err := New(0, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	t.Cleanup(s.CloseFDs)
	for range 2 {
		s.AddQueue(NewQueue(lostCQ{}))
	}
	for range 100 {
		s.turn(time.Now())
	}
	require.Equal(t, 2, bytes.Count(log.Bytes(), []byte("poll completion queue")), log.String())
}
