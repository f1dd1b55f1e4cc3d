package gateway

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// rollout is how far the share of the connections that is carried has grown.
type rollout struct {
	mu    sync.Mutex // guards everything below
	of    config.Rollout
	since time.Time
	now   config.Share
}

// begin begins a rollout.
func (r *rollout) begin(of config.Rollout, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of, r.since, r.now = of, now, of.At(0)
}

// follow goes on with another one.
func (r *rollout) follow(other *rollout) {
	other.mu.Lock()
	of, since := other.of, other.since
	other.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of, r.since, r.now = of, since, config.NoShare // told at the next chores
}

// step returns the share of now, and whether it is another one than before.
func (r *rollout) step(now time.Time) (of config.Rollout, share config.Share, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	share = r.of.At(now.Sub(r.since))
	changed = share != r.now
	r.now = share
	return r.of, share, changed
}

// share is that of now.
func (r *rollout) share() config.Share {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// grow lets the share follow its ramp.
func (g *gateway) grow(now time.Time) {
	of, share, changed := g.rollout.step(now)
	if !changed {
		return
	}
	if err := g.steer.SetRollout(policy.Rollout(of, share)); err != nil {
		g.log.Warn("share of connections", "percent", share, "error", err)
	}
}

// newRollout begins another rollout where the configuration has changed. One that is the
// same goes on, unless an operator has set another share.
func (g *gateway) newRollout(old, next config.Rollout) {
	g.rollout.mu.Lock()
	same := old == next && g.rollout.of == next
	g.rollout.mu.Unlock()
	if same {
		return
	}
	g.setRollout(next)
}

func (g *gateway) setRollout(r config.Rollout) {
	g.rollout.begin(r, time.Now())
	if err := g.steer.SetRollout(policy.Rollout(r, r.At(0))); err != nil {
		g.log.Warn("share of connections", "percent", r.At(0), "error", err)
	}
}

// SetShare implements admin.Control. A ramp goes on from there.
func (g *gateway) SetShare(s config.Share) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	r := g.live.Load().Rollout
	r.Percent = s
	if err := g.steer.SetRollout(policy.Rollout(r, s)); err != nil {
		return err
	}
	g.rollout.begin(r, time.Now())
	return nil
}
