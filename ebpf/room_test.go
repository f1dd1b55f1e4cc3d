package ebpf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Connections beyond those that may be set up at a time are native at once. One that is
// not answered soon gives its place to others, and so does one whose set-up has ended.
func TestRoomForSetUps(t *testing.T) {
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.SetUps = 2
	d := h1.open(cfg)
	offered := func() (n int) { // of a burst
		for range 64 {
			local, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
			require.NoError(t, err)
			if _, err := d.Flow(Tuple{Local: local, Remote: addrPort(ghost4 + ":6379")}); err == nil {
				n++
			}
		}
		return n
	}
	const soon = 10 * time.Millisecond // OFFERED_NS
	refused := uint64(0)
	for range 3 {
		start := time.Now()
		n := offered()
		took := time.Since(start)
		require.GreaterOrEqual(t, n, 2)
		require.LessOrEqual(t, n, 2*(1+int(took/soon)), "in %v", took)
		refused += uint64(64 - n)
		require.Equal(t, refused, nativeCount(t, d, SideClient, ReasonRateLimit))
		time.Sleep(2 * soon)
	}
	require.Positive(t, refused)
}

// While a step of set-ups takes too long on this host, an eighth of them is left.
func TestRoomWhileBusy(t *testing.T) {
	h1, h2 := newPair(t)
	h1.ghosts(h2)
	cfg := config([]Rule{{Action: ActionAccelerate}})
	cfg.SetUps = 16
	d := h1.open(cfg)
	begin := func() (Tuple, Flow, bool) {
		local, err := h1.begin(unix.AF_INET, addrPort(ghost4+":6379"))
		require.NoError(t, err)
		tuple := Tuple{Local: local, Remote: addrPort(ghost4 + ":6379")}
		f, err := d.Flow(tuple)
		return tuple, f, err == nil
	}
	// setUp sets one up, and returns what its steps took.
	setUp := func(late bool) time.Duration {
		_, err := d.FlushPeers() // so slow a machine that a first SYN counts as unanswered
		require.NoError(t, err)
		tuple, f, ok := begin()
		require.True(t, ok)
		began := time.Now()
		require.NoError(t, d.Transition(tuple, f.ISN, StateNegotiating, StateOffered))
		require.NoError(t, d.Transition(tuple, f.ISN, StateCompleting, StateNegotiating))
		if late {
			time.Sleep(30 * time.Millisecond) // STEP_NS and more
		}
		require.NoError(t, d.Transition(tuple, f.ISN, StateCarrying, StateCompleting))
		return time.Since(began)
	}
	for _, late := range []bool{false, true} {
		for end := time.Now().Add(patience); setUp(late) >= 20*time.Millisecond && !late; { // STEP_NS: this host is busy
			require.True(t, time.Now().Before(end), "no step is in time")
			time.Sleep(5 * time.Second) // BUSY_NS
		}
		n := 0
		start := time.Now()
		for range 64 {
			if _, _, ok := begin(); ok {
				n++
			}
		}
		took := time.Since(start)
		if late {
			require.LessOrEqual(t, n, 2*(1+int(took/(10*time.Millisecond))), "in %v", took)
		} else {
			require.GreaterOrEqual(t, n, 15, "but for the one that was set up")
		}
		time.Sleep(20 * time.Millisecond) // OFFERED_NS and more
	}
}
