package config

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/gateway/report"
)

// Trial is a rule for one service of one peer that applies for as long as its request is held
// open. It is for measurements, which want connections carried by a particular carrier, or by
// none, whatever the policy says.
//
// While it applies, its port belongs to it: no other rule is consulted for TCP connections
// with that server port. It cannot exceed what mode, kill switch and limits allow. What its
// connections are refused is not remembered about the peer, except that a path drops the
// option.
type Trial struct {
	// Peer is the other host, Port the server's port, on either side. Ports on the never-list
	// and ports named by a rule of the policy are refused.
	Peer netip.Addr `json:"peer"`
	Port uint16     `json:"port"`
	// Action is pass or accelerate.
	Action report.Action `json:"action"`
	// Carrier is the only carrier that a client offers; empty: all, in the configured order.
	// A server accepts what the client offers.
	Carrier report.Carrier `json:"carrier,omitempty"`
	// Way is in-process or steered, as in a rule; empty: both.
	Way report.Way `json:"way,omitempty"`
	// Cold makes each connection of the client behave like the first with its peer, with a
	// proof and a rendezvous of its own. What is known about the peer does not change.
	Cold bool `json:"cold,omitempty"`
}

// ErrTrialHeld means that another trial holds the same port.
var ErrTrialHeld = errors.New("port is on trial already")

// TrialError is returned for a trial that is invalid or not allowed.
type TrialError struct {
	// Field is the invalid part of the Trial, Problem what is wrong with it.
	Field, Problem string
}

// Error implements error.
func (e *TrialError) Error() string { return fmt.Sprintf("trial: %s: %s", e.Field, e.Problem) }

// OptIn requests that the TCP connections of a cgroup, and of those below it, be carried if
// possible, whatever the rules say, for as long as the request is held open. The never-list,
// the mode, the kill switch and the limits still apply.
type OptIn struct {
	// Cgroup is the path below the cgroup2 mount.
	Cgroup string `json:"cgroup"`
	// ID is the cgroup's number, by which the gateway verifies that it sees the same one.
	ID uint64 `json:"id"`
}

// ErrOptIn means that a cgroup cannot be opted in.
var ErrOptIn = errors.New("opt-in")
