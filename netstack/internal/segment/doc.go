// Package segment judges the segments of a wire leg by the numbers in their TCP headers:
//
//	Map          translates between the wire's sequence space and that of an endpoint whose handshake is not on the wire
//	PAWS         detects old duplicates, whose timestamp is older than an earlier one (RFC 7323 5)
//	Ahead        bounds the memory of segments that arrive ahead of missing ones
//	StrangeACKs  detects acknowledgements that the peer cannot have sent, because another host has taken its place
//	PathSize     finds the packet size on paths where routers silently drop larger packets (RFC 4821)
//
// It has no I/O and no clock, and keeps no segments.
package segment
