package conn

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// Keyring holds the current keys. A handshake keeps the keys it began with. Keyring is safe
// for concurrent use, except that calls of Set must not overlap.
type Keyring struct {
	log    *slog.Logger
	keys   atomic.Pointer[negotiate.Keys]
	warned rate.Sometimes // about peers without a common key
}

// warnEvery limits how often the log reports peers without a common key.
const warnEvery = time.Minute

// NewKeyring returns a ring without keys.
func NewKeyring(log *slog.Logger) *Keyring {
	return &Keyring{log: log, warned: rate.Sometimes{Interval: warnEvery}}
}

// NoCommonKey logs, at a limited rate, that a peer has no key in common with this gateway: an
// operator's mistake or an attack.
func (r *Keyring) NoCommonKey(peer netip.Addr, side report.Side) {
	r.warned.Do(func() {
		r.log.Warn("no key in common with a peer", "peer", peer, "side", side, "reason", negotiate.ReasonAuthFailed,
			"keys", len(r.Load()))
	})
}

// Load returns the keys. With none, nothing is authenticated.
func (r *Keyring) Load() negotiate.Keys {
	if k := r.keys.Load(); k != nil {
		return *k
	}
	return nil
}

// Set replaces the keys and reports whether they changed.
func (r *Keyring) Set(k negotiate.Keys) bool {
	if sameKeys(r.Load(), k) {
		return false
	}
	r.keys.Store(&k)
	return true
}

// random returns the random value of an authenticated message, or zeros without keys.
func (r *Keyring) random() (b [16]byte) {
	if len(r.Load()) > 0 {
		_, _ = rand.Read(b[:]) // never fails
	}
	return b
}

// bindingOf identifies the connection of a wire leg as both gateways see it.
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
