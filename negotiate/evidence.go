package negotiate

// OfCarriers reports whether r can mean that the server is unable to use any of the offered carriers. It might then
// still be able to use a different one.
func (r Reason) OfCarriers() bool {
	switch r {
	case ReasonNoCommonCarrier, ReasonNAT, ReasonDeviceFailed, ReasonCarrierUnreachable, ReasonFlowLimit, ReasonNoMemory, ReasonDrained:
		return true
	default:
		return false
	}
}

// Undone reports whether a carried connection with a peer disproves r, which is remembered about that peer. A
// connection of the same service disproves every reason. One of another service, or in the other direction, disproves
// reasons about the peer's gateway or the path to it, but not those about an application, its rule, or resource limits.
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
