package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Listening reports whether a SYN from remote to local would be answered by a
// listener. A connection on the tuple, in whatever state, comes first.
func (h *Host) Listening(local, remote netip.AddrPort) bool {
	ep, ok := h.endpoint(local, remote)
	return ok && tcp.EndpointState(ep.State()) == tcp.StateListen
}

// Destroy ends the connection between local and remote, also one in TIME_WAIT,
// and reports whether there was one.
func (h *Host) Destroy(local, remote netip.AddrPort) bool {
	ep, ok := h.endpoint(local, remote)
	if !ok || tcp.EndpointState(ep.State()) == tcp.StateListen {
		return false
	}
	ep.Abort()
	return true
}

// endpoint finds what would get a segment from remote to local.
func (h *Host) endpoint(local, remote netip.AddrPort) (hostEndpoint, bool) {
	l, proto := fullAddress(local)
	r, _ := fullAddress(remote)
	id := stack.TransportEndpointID{
		LocalAddress: l.Addr, LocalPort: l.Port, RemoteAddress: r.Addr, RemotePort: r.Port,
	}
	ep, ok := h.stack.FindTransportEndpoint(proto, tcp.ProtocolNumber, id, nicID).(hostEndpoint)
	return ep, ok
}

// hostEndpoint is what a registered TCP endpoint can do besides taking packets.
type hostEndpoint interface {
	State() uint32
	Abort()
}

// Over reports whether the connection has ended: reset by either side, timed
// out, or closed both ways with everything acknowledged. It tells a reset that a
// reader of a half-closed connection does not see any more.
func (c *HostConn) Over() bool {
	return c.over() || tcp.EndpointState(c.ep.State()) == tcp.StateTimeWait
}
