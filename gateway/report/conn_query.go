package report

import (
	"cmp"
	"net/netip"
)

// HistorySize is the number of connections in each history of a gateway. For TCP and for UDP
// there is one of those that were carried and have ended, and one of those that stayed
// native.
const HistorySize = 1024

// ConnQuery selects connections: those carried now, unless something else is requested.
type ConnQuery struct {
	// Closed requests the carried connections that have ended, Native those that stayed
	// native, as far back as the histories go ([HistorySize]); All requests these and the
	// connections carried now.
	Closed, Native, All bool
	// Details requests ConnInfo.Pair.
	Details bool
	// Programs requests ConnInfo.Program, which requires a search of the host's processes.
	Programs bool
	// Filter is what all returned connections must match.
	Filter ConnFilter
}

// Live reports whether connections carried now are requested.
func (q ConnQuery) Live() bool { return q.All || !q.Closed && !q.Native }

// Ended reports whether the history of carried connections is requested.
func (q ConnQuery) Ended() bool { return q.All || q.Closed }

// Natives reports whether the history of native connections is requested.
func (q ConnQuery) Natives() bool { return q.All || q.Native }

// ConnFilter selects connections: every field that is set must match. Texts are compared to
// the values of [ConnInfo].
type ConnFilter struct {
	// Port is the port of either end, Peer the address of the other host.
	Port    uint16       `json:"port,omitempty"`
	Peer    netip.Prefix `json:"peer,omitzero"`
	Carrier Carrier      `json:"carrier,omitempty"`
	// Reason is why a connection is native, was reset, or left its carrier.
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
