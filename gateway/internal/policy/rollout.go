package policy

import (
	"log/slog"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// RolloutSteering is the part of the datapath that is told the share.
type RolloutSteering interface {
	SetRollout(r ebpf.Rollout) error
}

// Rollout is the share of the connections that is carried.
type Rollout struct {
	steer RolloutSteering
	log   *slog.Logger

	mu  sync.Mutex // guards now, and that the datapath has it
	now config.Share
}

// NewRollout is the one that the datapath has been opened with.
func NewRollout(of config.Rollout, steer RolloutSteering, log *slog.Logger) *Rollout {
	return &Rollout{steer: steer, log: log, now: of.Percent}
}

// Share is that of now.
func (r *Rollout) Share() config.Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Set changes the share.
func (r *Rollout) Set(share config.Share) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.steer.SetRollout(rollout(share)); err != nil {
		return err
	}
	r.now = share
	return nil
}

// Configure is Set of a configuration.
func (r *Rollout) Configure(next config.Rollout) {
	if err := r.Set(next.Percent); err != nil {
		r.log.Warn("share of connections", "percent", next.Percent, "error", err)
	}
}
