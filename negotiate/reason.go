package negotiate

import "strconv"

// Reason says why a connection is not carried by RDMA, or how a carried one ended. The numbers appear on the wire in
// DECLINE and ABORT, and in the eBPF maps; their meaning never changes.
type Reason uint8

// The reasons, grouped by tens: 1-19 were decided on this host before the SYN left, 20-29 come from the path or the
// peer's SYN-ACK, 30-49 from the negotiation or a limit, 50-59 were learnt, and 60-69 say how a carried connection
// ended.
const (
	ReasonNone Reason = 0

	ReasonOff          Reason = 1
	ReasonPolicy       Reason = 2
	ReasonNeverList    Reason = 3
	ReasonGatewayStale Reason = 4
	ReasonNAT          Reason = 5
	ReasonForwarded    Reason = 6
	ReasonSYNOptions   Reason = 7
	ReasonAddress      Reason = 8
	ReasonCanary       Reason = 9

	ReasonAppLegBlocked Reason = 10

	ReasonPeerNoOption     Reason = 20
	ReasonOptionMirrored   Reason = 21
	ReasonOptionBlackholed Reason = 22
	ReasonAcceptLost       Reason = 23
	ReasonClientGone       Reason = 24
	ReasonPeerUnresolved   Reason = 25
	ReasonOptionRejected   Reason = 26
	ReasonPeerRefused      Reason = 27
	ReasonOfferUnanswered  Reason = 28

	ReasonVersion            Reason = 30
	ReasonNoCommonCarrier    Reason = 31
	ReasonHandshakeTimeout   Reason = 32
	ReasonAppRefused         Reason = 33
	ReasonAppUnreachable     Reason = 34
	ReasonNoMemory           Reason = 35
	ReasonFlowLimit          Reason = 36
	ReasonRateLimit          Reason = 37
	ReasonAuthFailed         Reason = 38
	ReasonProtocolError      Reason = 39
	ReasonCarrierUnreachable Reason = 40
	ReasonDeviceFailed       Reason = 41
	ReasonMode               Reason = 43
	ReasonProposalLate       Reason = 44
	ReasonNoPeer             Reason = 45

	ReasonNotWorthIt Reason = 50

	ReasonLostBytes Reason = 60
	ReasonStalled   Reason = 61
	ReasonPeerDead  Reason = 62
	ReasonWireReset Reason = 63
	ReasonDrained   Reason = 64

	ReasonInternalError Reason = 65
	ReasonAppReset      Reason = 66
)

// String returns the stable snake-case name that is used in metrics, JSON and logs, or reason_N for a number that this
// version does not know, which a newer peer may send.
func (r Reason) String() string {
	if t := r.text(); t != nil {
		return t.name
	}
	if r == ReasonNone {
		return "none"
	}
	return "reason_" + strconv.Itoa(int(r))
}

// known reports whether this version knows the reason.
func (r Reason) known() bool { return r.text() != nil }

// Meaning returns one sentence that says what happened.
func (r Reason) Meaning() string {
	if t := r.text(); t != nil {
		return t.meaning
	}
	return "A reason this version does not know; the peer is newer."
}

// Fix returns what an operator can do about it.
func (r Reason) Fix() string {
	if t := r.text(); t != nil {
		return t.fix
	}
	return "Upgrade this gateway to the version of the peer."
}

// Reasons returns every known reason in the order of the numbers.
func Reasons() []Reason {
	var rs []Reason
	for r := range reasonTexts {
		if reasonTexts[r].name != "" {
			rs = append(rs, Reason(r))
		}
	}
	return rs
}

// ParseReason returns the reason with this name.
func ParseReason(name string) (Reason, bool) {
	for r := range reasonTexts {
		if name != "" && reasonTexts[r].name == name {
			return Reason(r), true
		}
	}
	return ReasonNone, false
}

// MarshalText makes reasons appear by name in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r Reason) text() *reasonText {
	if int(r) >= len(reasonTexts) || reasonTexts[r].name == "" {
		return nil
	}
	return &reasonTexts[r]
}
