package policy

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// hookedSteering is a datapath that has the share; before runs ahead of the next write.
type hookedSteering struct {
	before func() error
	last   ebpf.Rollout
}

func (s *hookedSteering) SetRollout(r ebpf.Rollout) error {
	if f := s.before; f != nil {
		s.before = nil
		if err := f(); err != nil {
			return err
		}
	}
	s.last = r
	return nil
}

// A rollout that begins while the share of the one before grows has the last word.
func TestGrowBesideBegin(t *testing.T) {
	s := &hookedSteering{}
	p := NewProgress(config.Rollout{Percent: 1000, Ramp: 24 * 1000}, s, slog.New(slog.DiscardHandler))
	begun := make(chan error, 1)
	s.before = func() error {
		go func() { begun <- p.Begin(config.Rollout{Percent: config.NoShare}) }()
		time.Sleep(10 * time.Millisecond) // it would be through without the lock
		return nil
	}
	p.Grow(time.Now().Add(4 * time.Hour))
	require.NoError(t, <-begun)
	require.Equal(t, config.NoShare, p.Share())
	require.Equal(t, ebpf.ShareNone, s.last.Share)
}

// A share that the datapath refuses is not that of now, and tried again.
func TestGrowAgain(t *testing.T) {
	s := &hookedSteering{before: func() error { return errors.New("refused") }}
	p := NewProgress(config.Rollout{Percent: 1000, Ramp: 24 * 1000}, s, slog.New(slog.DiscardHandler))
	before := p.Share()
	later := time.Now().Add(4 * time.Hour)
	p.Grow(later)
	require.Equal(t, before, p.Share())
	require.Zero(t, s.last)
	p.Grow(later)
	require.NotEqual(t, before, p.Share())
	require.NotZero(t, s.last)
}
