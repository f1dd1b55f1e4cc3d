package policy

import (
	"log/slog"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// RolloutSteering is the part of the datapath that applies the share.
type RolloutSteering interface {
	SetRollout(r ebpf.Rollout) error
}

// Rollout is the share of connections that is carried.
type Rollout struct {
	steer RolloutSteering
	log   *slog.Logger

	mu  sync.Mutex // guards now, and keeps the datapath in step with it
	now config.Share
}

// NewRollout returns the rollout with which the datapath has been opened.
func NewRollout(of config.Rollout, steer RolloutSteering, log *slog.Logger) *Rollout {
	return &Rollout{steer: steer, log: log, now: of.Percent}
}

// Share returns the current share.
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

// Configure applies the share of a configuration, and logs an error.
func (r *Rollout) Configure(next config.Rollout) {
	if err := r.Set(next.Percent); err != nil {
		r.log.Warn("share of connections", "percent", next.Percent, "error", err)
	}
}
