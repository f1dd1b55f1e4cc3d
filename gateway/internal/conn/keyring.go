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

// Keyring is the keys in force. A handshake has those of its beginning. It is safe
// for concurrent use; one goroutine at a time calls Set.
type Keyring struct {
	log    *slog.Logger
	keys   atomic.Pointer[negotiate.Keys]
	warned rate.Sometimes // of peers without a key in common
}

// warnEvery is how often the log says that peers have other keys.
const warnEvery = time.Minute

// NewKeyring returns a ring without keys.
func NewKeyring(log *slog.Logger) *Keyring {
	return &Keyring{log: log, warned: rate.Sometimes{Interval: warnEvery}}
}

// NoCommonKey says, now and then, that a peer has no key in common with this gateway:
// a mistake of an operator, or an attempt.
func (r *Keyring) NoCommonKey(peer netip.Addr, side report.Side) {
	r.warned.Do(func() {
		r.log.Warn("no key in common with a peer", "peer", peer, "side", side, "reason", negotiate.ReasonAuthFailed,
			"keys", len(r.Load()))
	})
}

// Load returns the keys; none: nothing is authenticated.
func (r *Keyring) Load() negotiate.Keys {
	if k := r.keys.Load(); k != nil {
		return *k
	}
	return nil
}

// Set changes the keys and reports whether they are others than before.
func (r *Keyring) Set(k negotiate.Keys) bool {
	if sameKeys(r.Load(), k) {
		return false
	}
	r.keys.Store(&k)
	return true
}

// random is what a message needs that is authenticated; zero without keys.
func (r *Keyring) random() (b [16]byte) {
	if len(r.Load()) > 0 {
		_, _ = rand.Read(b[:]) // never fails
	}
	return b
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
