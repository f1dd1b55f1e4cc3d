// Package segment judges the segments of a wire leg by the numbers in their TCP headers:
//
//	Map          the sequence space of the wire in that of an endpoint whose handshake the wire does not see, and back
//	PAWS         a segment with a timestamp older than one that came before is an old duplicate (RFC 7323 5)
//	Ahead        a bound for the memory of segments that come before those in front of them
//	StrangeACKs  acknowledgements that the peer cannot have sent: another host has taken its place
//	PathSize     how large packets may be where routers drop larger ones in silence (RFC 4821)
//
// It has no I/O and no clock, and holds no segment.
package segment
