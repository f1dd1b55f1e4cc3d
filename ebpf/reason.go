package ebpf

import "github.com/smcgw/smcgw/ebpf/internal/policy"

// Reasons that the programs decide by themselves (numbers of docs/PROTOCOL.md "Reasons"; negotiate has their names and
// texts).
const (
	ReasonOff              uint8 = 1
	ReasonPolicy           uint8 = policy.ReasonPolicy
	ReasonNeverList        uint8 = policy.ReasonNeverList
	ReasonGatewayStale     uint8 = 4
	ReasonNAT              uint8 = 5
	ReasonForwarded        uint8 = 6
	ReasonSYNOptions       uint8 = 7
	ReasonAddress          uint8 = 8
	ReasonCanary           uint8 = policy.ReasonCanary
	ReasonAppLegBlocked    uint8 = 10
	ReasonPeerNoOption     uint8 = 20
	ReasonOptionMirrored   uint8 = 21
	ReasonOptionBlackholed uint8 = 22
	ReasonAcceptLost       uint8 = 23
	ReasonClientGone       uint8 = 24
	ReasonPeerUnresolved   uint8 = 25
	ReasonOptionRejected   uint8 = 26
	ReasonPeerRefused      uint8 = 27
	ReasonOfferUnanswered  uint8 = 28
	ReasonHandshakeTimeout uint8 = 32
	ReasonFlowLimit        uint8 = 36
	ReasonRateLimit        uint8 = 37
	ReasonMode             uint8 = 43
	ReasonNotWorthIt       uint8 = policy.ReasonNotWorthIt
)
