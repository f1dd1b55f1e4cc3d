package ebpf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestCarryAndCount: a datapath that counts carries, and counts again, with policy and counters
// as they were; every connection meanwhile is counted once, and nothing is left behind.
func TestCarryAndCount(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h2.echo("6379")
	d1, d2 := h1.open(withLegs(t, countingConfig(accelerate(6379)))), h2.open(withLegs(t, countingConfig(accelerate(6379))))
	before, there := h1.attachments(), h2.attachments()
	for round := range 2 {
		counted, stop, connected := d1.selected(t, 0), make(chan struct{}), make(chan int)
		go func() {
			n := 0
			defer func() { connected <- n }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if c, err := h1.connect("10.77.0.2:6379", patience); err == nil {
					n++
					_ = c.Close()
				}
			}
		}()
		require.NoError(t, d2.Carry())
		for range 3 {
			require.NoError(t, d1.Carry())
			require.NoError(t, d1.Carry(), "it carries already")
			require.NotEqual(t, before, h1.attachments())
			require.NoError(t, d1.Count())
			h1.attached(t, before)
			require.Equal(t, 3, offerings(d1))
		}
		require.NoError(t, d1.Carry())
		close(stop)
		n := <-connected
		require.EqualValues(t, counted+uint64(n), d1.selected(t, 0))
		require.Positive(t, n)

		for _, d := range []*Datapath{d1, d2} {
			require.NoError(t, d.SetMode(ModeEnforce))
		}
		ln := h1.listen(d1, "tcp4")
		app := h1.connectAsync("10.77.0.2:6379")
		f1, _, back := met(t, d1, d2)
		require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCompleting, StateNegotiating))
		require.NoError(t, d1.InjectApp(f1.SYN))
		require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
		leg, err := ln.AcceptTCP()
		require.NoError(t, err, round)
		a := <-app
		require.NoError(t, a.err)
		bulk(t, a.c, leg)
		_, _, _ = a.c.Close(), leg.Close(), ln.Close()
		require.NoError(t, d1.Delete(f1.Tuple, f1.ISN))
		require.NoError(t, d2.Delete(back, f1.ISN))
		for _, d := range []*Datapath{d1, d2} {
			require.NoError(t, d.SetMode(ModeObserve))
			require.NoError(t, d.Count())
		}
		h1.attached(t, before)
		h2.attached(t, there) // or the next round may find a device of this one in use
	}
}

// offerings counts the links by which connections are seen.
func offerings(d *Datapath) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.offering)
}

// TestCarryFails: a datapath that cannot carry counts as before, and leaves nothing.
func TestCarryFails(t *testing.T) {
	h1, h2 := newPair(t)
	h2.echo("6379")
	cfg := withLegs(t, countingConfig(accelerate(6379)))
	d := h1.open(cfg)
	before := h1.attachments()
	other := withLegs(t, config(nil))
	second := h1.open(other) // has the names of the devices
	fds := len(leak.OpenFiles())
	require.ErrorIs(t, d.Carry(), ErrInUse)
	require.Equal(t, fds, len(leak.OpenFiles()))
	require.NoError(t, second.Close())
	require.NoError(t, cfg.Legs.Close())
	require.ErrorContains(t, d.Carry(), "legs")
	h1.attached(t, before)
	c, err := h1.connect("10.77.0.2:6379", patience)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 1, d.selected(t, 0))
	require.NoError(t, d.Close())
	require.Error(t, d.Carry())
}
