package admin

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Control is what the admin server asks of a running gateway. All methods are
// called from ordinary goroutines, several at once, never from an event loop;
// they must return within a second whatever the flows do. Every
// request of the socket is a method.
type Control interface {
	reports
	switches
	drains
	renewals
}

// reports is the part of [Control] that changes nothing.
type reports interface {
	// Status summarises. Schema may be left empty.
	Status() report.Status
	// Stats returns the totals since the start. Schema may be left empty.
	Stats() report.Stats
	// Conns lists the connections of a query, newest first; the list is the caller's. It may
	// have some that the filter does not match.
	Conns(q report.ConnQuery) []report.ConnInfo
	// Feed tells what happens to connections.
	Feed() *report.Feed
	// Peers lists what is known of peers.
	Peers() []report.PeerInfo
	// Policy tells the rules and what they decided. Schema may be left empty.
	Policy() report.PolicyReport
	// Devices lists the RDMA devices of the configuration, and the adapters of the
	// host. Schema may be left empty.
	Devices() DeviceList
}

// switches is the part of [Control] that changes what becomes of connections.
type switches interface {
	// FlushPeers forgets every remembered refusal and returns their number.
	FlushPeers() (int, error)
	// Try makes a trial's rule count, until end is called. A [config.TrialError] says
	// what is wrong with it.
	Try(t config.Trial) (end func(), err error)
	// OptIn makes the rule of an opt-in count, before it returns and until end is called.
	// [config.ErrOptIn] says that it cannot.
	OptIn(o config.OptIn) (end func(), err error)
	// Set changes a setting until the gateway ends, or as [Settings] says. [ErrSetting] says that it cannot.
	Set(s Setting) error
	// Demote has connections leave their queue pairs and go on over the relay, and
	// returns how many it has asked.
	Demote(q DemoteQuery) (int, error)
	// SetOff throws or resets the kill switch for new connections. The file
	// that makes it survive a restart is the admin server's business.
	SetOff(off bool) error
	// ResetFlows begins to reset everything that is carried, and returns how many
	// connections that are. What is negotiated falls back.
	ResetFlows() int
}

// drains is the part of [Control] that ends the gateway.
type drains interface {
	// Drain leaves all new connections native and ends the gateway when those it
	// carries have ended, at the latest after timeout; 0: the configuration's. The
	// channel is closed when that is so and the gateway is about to stop. Called
	// again, the earlier end holds.
	Drain(timeout time.Duration) (over <-chan struct{}, err error)
	// Draining tells how far a drain is; nil if none.
	Draining() *report.DrainInfo
}

// renewals is the part of [Control] that has another configuration, or program, take effect.
// It may take longer than a second.
type renewals interface {
	// Renew reads the configuration again and puts it in force, or has another gateway take
	// over, of which it tells: if the installed program is another one than runs, if
	// the configuration takes a restart, or always. An error changes nothing, but that of
	// ctx, whose end the reading outlasts. ctx has a deadline.
	Renew(ctx context.Context, always bool) (replaced bool, err error)
}
