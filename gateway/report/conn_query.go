package report

import (
	"cmp"
	"net/netip"
)

// HistorySize is how many connections each history of a gateway keeps: of TCP and of UDP
// those that were carried and have ended, and those that stayed native.
const HistorySize = 1024

// ConnQuery says which connections are wanted: those that are carried, unless something
// else is named.
type ConnQuery struct {
	// Closed asks for the carried connections that have ended, Native for those that
	// stayed native, as far as the histories go ([HistorySize]); All asks for these and for
	// the connections that are carried.
	Closed, Native, All bool
	// Details asks for ConnInfo.Pair.
	Details bool
	// Programs asks for ConnInfo.Program, for which the processes of the host are looked through.
	Programs bool
	// Filter is what all of them match.
	Filter ConnFilter
}

// Live reports whether connections that are carried now are wanted.
func (q ConnQuery) Live() bool { return q.All || !q.Closed && !q.Native }

// Ended reports whether the history of carried connections is wanted.
func (q ConnQuery) Ended() bool { return q.All || q.Closed }

// Natives reports whether the history of native ones is wanted.
func (q ConnQuery) Natives() bool { return q.All || q.Native }

// ConnFilter selects connections: every field that is set must match. Texts are compared
// as [ConnInfo] has them.
type ConnFilter struct {
	// Port is of either end, Peer the address of the other host.
	Port    uint16       `json:"port,omitempty"`
	Peer    netip.Prefix `json:"peer,omitzero"`
	Carrier Carrier      `json:"carrier,omitempty"`
	// Reason is why a connection is native, was reset, or has left its carrier.
	Reason string `json:"reason,omitempty"`
	Way    Way    `json:"way,omitempty"`
	End    End    `json:"end,omitempty"`
}

// Matches reports whether a connection is selected.
func (f ConnFilter) Matches(c *ConnInfo) bool {
	return (f.Port == 0 || f.Port == c.Local.Port() || f.Port == c.Remote.Port()) &&
		(!f.Peer.IsValid() || f.Peer.Contains(c.Remote.Addr().Unmap())) &&
		(f.Carrier == CarrierNone || f.Carrier == c.Carrier) &&
		(f.Reason == "" || f.Reason == c.Reason || f.Reason == c.Demoted) &&
		(f.Way == "" || f.Way == cmp.Or(c.Way, c.way())) && (f.End == "" || f.End == c.End)
}
