package gateway

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// keyring is the keys in force. A handshake has those of its beginning. It is safe
// for concurrent use; one goroutine at a time calls set.
type keyring struct {
	keys   atomic.Pointer[negotiate.Keys]
	warned rate.Sometimes // of peers without a key in common
}

// strangersEvery is how often the log says that peers have other keys.
const strangersEvery = time.Minute

// stranger says, now and then, that a peer has no key in common with this gateway:
// a mistake of an operator, or somebody who tries.
func (g *gateway) stranger(peer netip.Addr, side config.Side) {
	g.keys.warned.Do(func() {
		g.log.Warn("no key in common with a peer", "peer", peer, "side", side, "reason", negotiate.ReasonAuthFailed,
			"keys", len(g.keys.load()))
	})
}

// load returns the keys; none: nothing is authenticated.
func (r *keyring) load() negotiate.Keys {
	if k := r.keys.Load(); k != nil {
		return *k
	}
	return nil
}

// set changes the keys and reports whether they are others than before.
func (r *keyring) set(k negotiate.Keys) bool {
	if sameKeys(r.load(), k) {
		return false
	}
	r.keys.Store(&k)
	return true
}

// random is what a message needs that is authenticated; zero without keys.
func (r *keyring) random() (b [16]byte) {
	if len(r.load()) > 0 {
		_, _ = rand.Read(b[:]) // never fails
	}
	return b
}

// setKeys puts keys in force: new handshakes and resolutions have them, what is
// carried goes on. Who was refused for the old ones is asked again.
func (g *gateway) setKeys(keys negotiate.Keys) error {
	if !g.keys.set(keys) {
		return nil
	}
	g.log.Info("keys changed", "keys", len(keys))
	g.dgrams.Load().SetKeys(keys)
	peers, err := g.steer.Peers()
	errs := []error{err}
	for _, p := range peers {
		if negotiate.Reason(p.Reason) == negotiate.ReasonAuthFailed {
			g.peers.Forget(p.Addr, p.Port)
			errs = append(errs, g.steer.Forget(p.Addr, p.Port))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget who had another key: %w", err)
	}
	return nil
}

// bindingOf names the connection of a wire leg as both gateways see it.
func bindingOf(c *netstack.Conn) negotiate.Binding {
	b := negotiate.Binding{
		Client: c.LocalAddr(), Server: c.RemoteAddr(), ClientISN: c.ISN(), ServerISN: c.ServerISN(),
	}
	if c.Server() {
		b.Client, b.Server = b.Server, b.Client
	}
	return b
}

// sameKeys reports whether two sets are equal.
func sameKeys(a, b negotiate.Keys) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
