package config

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/gateway/report"
)

// Trial is a rule about one service of one peer that counts for as long as its
// request is held open: for measurements, which want to have a connection
// carried by this carrier, or by none, whatever the policy says.
//
// While it counts, its port belongs to it: no other rule is asked about TCP
// connections with that server port. It can only make less or the same of the
// mode, the kill switch and the limits, and nothing that its connections are
// refused is remembered about the peer. That a path eats the option is.
type Trial struct {
	// Peer is the other host, Port the server's port, on either side. Ports of
	// the never-list, and ports that a rule of the policy names, are refused.
	Peer netip.Addr `json:"peer"`
	Port uint16     `json:"port"`
	// Action is pass or accelerate.
	Action report.Action `json:"action"`
	// Carrier is the only one that a client offers; empty: all there are, in the
	// order of the configuration. A server takes what the client offers.
	Carrier report.Carrier `json:"carrier,omitempty"`
	// Way is in-process or steered, as in a rule; empty: both.
	Way report.Way `json:"way,omitempty"`
	// Cold: each connection that the client makes is the first with its peer, by a proof
	// and a rendezvous of its own. What is known of the peer stays as it is.
	Cold bool `json:"cold,omitempty"`
}

// ErrTrialHeld says that another trial holds the same port.
var ErrTrialHeld = errors.New("port is on trial already")

// TrialError is returned for a trial that makes no sense or is not allowed.
type TrialError struct {
	// Field is the part of the Trial that is wrong, Problem what is wrong
	// with it.
	Field, Problem string
}

// Error implements error.
func (e *TrialError) Error() string { return fmt.Sprintf("trial: %s: %s", e.Field, e.Problem) }
