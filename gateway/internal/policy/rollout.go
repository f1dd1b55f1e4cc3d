package policy

import (
	"log/slog"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
)

// RolloutSteering is the part of the datapath that is told the share.
type RolloutSteering interface {
	SetRollout(r ebpf.Rollout) error
}

// Progress is how far the share of the connections that is carried has grown.
type Progress struct {
	steer RolloutSteering
	log   *slog.Logger

	mu    sync.Mutex // guards everything below, and that the datapath has it
	of    config.Rollout
	since time.Time
	now   config.Share
}

// NewProgress begins a rollout that the datapath has been opened with.
func NewProgress(of config.Rollout, steer RolloutSteering, log *slog.Logger) *Progress {
	return &Progress{steer: steer, log: log, of: of, since: time.Now(), now: of.At(0)}
}

// Share is that of now.
func (p *Progress) Share() config.Share {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// Begin begins another rollout.
func (p *Progress) Begin(of config.Rollout) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beginLocked(of)
}

func (p *Progress) beginLocked(of config.Rollout) error {
	if err := p.steer.SetRollout(rollout(of, of.At(0))); err != nil {
		return err
	}
	p.of, p.since, p.now = of, time.Now(), of.At(0)
	return nil
}

// Configure begins that of a configuration, unless it is under way.
func (p *Progress) Configure(next config.Rollout) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == next {
		return
	}
	if err := p.beginLocked(next); err != nil {
		p.log.Warn("share of connections", "percent", next.At(0), "error", err)
	}
}

// Grow lets the share follow its ramp. What the datapath refuses is tried again the next time.
func (p *Progress) Grow(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.of.At(now.Sub(p.since))
	if share == p.now {
		return
	}
	if err := p.steer.SetRollout(rollout(p.of, share)); err != nil {
		p.log.Warn("share of connections", "percent", share, "error", err)
		return
	}
	p.now = share
}
