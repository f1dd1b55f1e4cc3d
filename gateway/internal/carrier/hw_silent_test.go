package carrier

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/verbs"
)

// TestHWDoesNotAnswer: an adapter whose calls hang keeps no connection, and holds no more than the
// calls that were under way. What they make is closed when they return, and the adapter used again, or closed
// where it was to go.
func TestHWDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		call string
		goes bool
	}{{call: "AllocPD"}, {call: "CreateCQ"}, {call: "CreateQP"}, {call: "AllocMR"}, {"AllocPD", true}, {"CreateQP", true}} {
		name := c.call
		if c.goes {
			name += " of one that goes"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for calls that hang
			cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceHW}, HW: config.HW{TrafficClass: 104}}
			s := openSide(t, cfg, always(twohosts.Hosts(t)[0].Addr), nil, twohosts.FreePort(t))
			dev, held := s.host.last(), make(chan struct{})
			release := sync.OnceFunc(func() { close(held) })
			t.Cleanup(release)
			s.host.mu.Lock()
			dev.held = map[string]chan struct{}{c.call: held}
			s.host.mu.Unlock()
			over := make(chan struct{})
			go func() {
				defer close(over)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() { assert.ErrorIs(t, s.offer(addrB), loop.ErrNoAnswer) })
				}
				all.Wait()
				assert.ErrorIs(t, s.offer(addrA), loop.ErrNoAnswer, "after them")
			}()
			select {
			case <-over:
			case <-time.After(patience):
				require.FailNow(t, "connections wait for the adapter")
			}
			s.host.mu.Lock()
			require.LessOrEqual(t, s.host.calls, makersMost)
			s.host.mu.Unlock()
			info := s.device(t)
			require.Equal(t, []any{report.DeviceFailed, loop.ErrNoAnswer.Error(), uint64(0)}, []any{info.State, info.Error, info.Use["qps"]})
			peers := info.Use["peers"]
			s.hw.forgetIdle(time.Now().Add(2 * idlePeers))
			require.Equal(t, peers, s.device(t).Use["peers"], "a call may be one of the peer")
			if c.goes {
				_, err := s.hw.Withdraw("rxe0")
				require.ErrorIs(t, err, verbs.ErrBusy)
				require.False(t, dev.isClosed())
				release()
				eventually(t, dev.isClosed, "it is closed after the call")
			} else {
				release()
				eventually(t, func() bool { return s.offer(addrB) == nil }, "it answers again")
				eventually(t, func() bool { return s.device(t).State == report.DeviceActive }, "operators see it")
			}
			eventually(t, s.isEmpty, "nothing is left")
		})
	}
}
