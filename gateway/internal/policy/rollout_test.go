package policy

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// refusingSteering is a datapath that has the share, unless it refuses the next one.
type refusingSteering struct {
	refuse error
	last   ebpf.Rollout
}

func (s *refusingSteering) SetRollout(r ebpf.Rollout) error {
	if s.refuse == nil {
		s.last = r
	}
	return s.refuse
}

// A share that the datapath refuses is not that of now.
func TestShareRefused(t *testing.T) {
	s := &refusingSteering{refuse: errors.New("refused")}
	r := NewRollout(config.Rollout{Percent: 1000}, s, slog.New(slog.DiscardHandler))
	require.ErrorIs(t, r.Set(config.NoShare), s.refuse)
	r.Configure(config.Rollout{Percent: config.AllShare})
	require.EqualValues(t, 1000, r.Share())
	s.refuse = nil
	r.Configure(config.Rollout{Percent: config.NoShare})
	require.Equal(t, config.NoShare, r.Share())
	require.Equal(t, ebpf.ShareNone, s.last.Share)
}
