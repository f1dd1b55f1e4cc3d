package negotiate

// OfCarriers reports whether a server may decline by the reason because it can use none of the carriers that it was
// offered: it might use another one.
func (r Reason) OfCarriers() bool {
	switch r {
	case ReasonNoCommonCarrier, ReasonNAT, ReasonDeviceFailed, ReasonCarrierUnreachable, ReasonFlowLimit, ReasonNoMemory, ReasonDrained:
		return true
	default:
		return false
	}
}

// Undone reports whether a connection that is carried with a peer contradicts what is remembered of it. One of the same
// service contradicts everything; one of another service, or in the other direction, what is about the peer's gateway or
// the way to it, but nothing about an application, its rule or the room for more.
func (p CachePolicy) Undone(r Reason, sameService bool) bool {
	if p.ScopeOf(r) == ScopeNone || sameService {
		return sameService
	}
	switch r {
	case ReasonAcceptLost, ReasonCarrierUnreachable, ReasonHandshakeTimeout, ReasonDeviceFailed, ReasonWireReset,
		ReasonDrained, ReasonInternalError, ReasonVersion, ReasonNoCommonCarrier, ReasonNAT, ReasonAuthFailed,
		ReasonProtocolError, ReasonMode, ReasonOff:
		return true
	default:
		return false
	}
}
