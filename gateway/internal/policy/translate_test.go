package policy

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestSteeringConfigHasTheProtocol(t *testing.T) {
	c := config.Config{Policy: []config.Rule{
		{Match: config.Match{Proto: report.ProtoUDP, Ports: config.Ports(53)}, Action: report.ActionAccelerate},
		{Match: config.Match{Ports: config.Ports(53)}, Action: report.ActionAccelerate},
		{},
	}}.WithDefaults()
	c.StateDir = t.TempDir()
	s := Translate(c, false, slog.New(slog.DiscardHandler))
	var got []ebpf.Proto
	for _, r := range s.Policy {
		got = append(got, r.Proto)
	}
	require.EqualValues(t, 4790, s.DatagramPort)
	require.Equal(t, time.Hour, s.Retry)
	require.Equal(t, []ebpf.Proto{ebpf.ProtoUDP, ebpf.ProtoTCP, ebpf.ProtoTCP}, got)
}

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

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
