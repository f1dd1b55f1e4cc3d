package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/peers"
)

// Renew implements admin.Control.
func (g *gateway) Renew(ctx context.Context, always bool) (admin.Successor, error) {
	s, err := g.renewal.Renew(ctx, always)
	if s == nil || err != nil {
		return nil, err
	}
	return s, nil
}

// Leave implements admin.Control. From here on the successor speaks for the service.
func (g *gateway) Leave(still func() error, timeout time.Duration, main int) (off bool, err error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := still(); err != nil {
		return false, fmt.Errorf("leave: %w", err)
	}
	if err := g.refusals.Change(func(r *peers.Refusal) { r.Drained = true }); err != nil {
		return false, err
	}
	g.renewal.Manager.HandOver(main) // before the end of the drain, which may come at once
	_, err = g.drain(timeout)
	return g.off.Load(), err
}
