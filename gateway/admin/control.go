package admin

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Control is what the admin server needs from a running gateway. All methods are called from
// ordinary goroutines, concurrently, and never from an event loop. They must return within a
// second, whatever the flows do. Every request on the socket corresponds to a method.
type Control interface {
	// Status returns a summary. Schema may be left empty.
	Status() report.Status
	// Stats returns the totals since the start. Schema may be left empty.
	Stats() report.Stats
	// Conns lists the connections of a query, newest first. The caller owns the list, which
	// may include some that the filter does not match.
	Conns(q report.ConnQuery) []report.ConnInfo
	// Feed returns the feed of what happens to connections.
	Feed() *report.Feed
	// Peers lists what is known about peers.
	Peers() []report.PeerInfo
	// Policy returns the rules and their decisions. Schema may be left empty.
	Policy() report.PolicyReport
	// Devices lists the configured RDMA devices and the adapters of the host. Schema may be
	// left empty.
	Devices() DeviceList

	// FlushPeers forgets every remembered refusal and returns their number.
	FlushPeers() (int, error)
	// Try makes a trial's rule apply until end is called. A [config.TrialError] says what is
	// wrong with it.
	Try(t config.Trial) (end func(), err error)
	// OptIn makes the rule of an opt-in apply before it returns and until end is called. It
	// fails with [config.ErrOptIn] if it cannot.
	OptIn(o config.OptIn) (end func(), err error)
	// Set changes a setting until the gateway ends, or as [Settings] says. It fails with
	// [ErrSetting] if it cannot.
	Set(s Setting) error
	// Demote makes connections leave their queue pairs and continue over the relay, and
	// returns how many it has asked to.
	Demote(q DemoteQuery) (int, error)
	// SetOff sets or clears the kill switch for new connections. The admin server manages the
	// file that preserves it across restarts.
	SetOff(off bool) error
	// ResetFlows starts resetting everything that is carried, and returns the number of those
	// connections. Negotiations fall back.
	ResetFlows() int

	// Drain makes all new connections native and ends the gateway when the connections it
	// carries have ended, but no later than after timeout; 0 means the configured one. The
	// channel is closed when that has happened and the gateway is about to stop. If Drain is
	// called again, the earlier of the two deadlines applies.
	Drain(timeout time.Duration) (over <-chan struct{}, err error)
	// Draining returns the progress of a drain; nil if there is none.
	Draining() *report.DrainInfo

	// Renew rereads the configuration and puts it into effect, or makes another gateway take
	// over and returns true: if the installed program differs from the running one, if the
	// configuration takes a restart, or if always is set. If it fails, nothing has changed,
	// unless the error is that of ctx: the reload may continue after ctx ends. ctx must have
	// a deadline. It may take longer than a second.
	Renew(ctx context.Context, always bool) (replaced bool, err error)
}
