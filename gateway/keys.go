package gateway

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/negotiate"
)

// changeKeys is setKeys, but logs errors. Peers that it cannot forget are retried later.
func (g *gateway) changeKeys(keys negotiate.Keys) {
	if err := g.setKeys(keys); err != nil {
		g.log.Warn("peers that were refused for their keys", "error", err)
	}
}

// setKeys puts keys into effect: new handshakes and resolutions use them, and carried
// connections continue. Peers refused because of the old keys are tried again.
func (g *gateway) setKeys(keys negotiate.Keys) error {
	if !g.keys.Set(keys) {
		return nil
	}
	g.log.Info("keys changed", "keys", len(keys))
	e := g.engine()
	e.datagrams().SetKeys(keys)
	peers, err := g.steer.Peers()
	errs := []error{err}
	for _, p := range peers {
		if negotiate.Reason(p.Reason) == negotiate.ReasonAuthFailed {
			if e != nil {
				e.peers.Forget(p.Addr, p.Port)
			}
			errs = append(errs, g.steer.Forget(p.Addr, p.Port))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget who had another key: %w", err)
	}
	return nil
}
