package testnet

import "math/rand/v2"

// Corruption flips a bit in some packets, as faulty memory in a box does: the checksum of the Ethernet frame is valid,
// but its contents are not.
type Corruption struct {
	// Chance is the probability, per mille, for each packet.
	Chance int
	// Headers flips a bit in the IP or transport header instead of the payload.
	Headers bool
	// Mend corrects the transport's checksum afterwards, as a box does that computes the checksum after the corruption.
	Mend bool
	// UDPPort, if not 0, restricts it to datagrams from or to that port.
	UDPPort uint16
}

// apply flips a bit, and reports whether it did.
func (c Corruption) apply(frame []byte, luck *rand.Rand) bool {
	if c.Chance == 0 || luck.IntN(1000) >= c.Chance {
		return false
	}
	v, ok := viewPacket(frame)
	if !ok || v.neighbour() || c.UDPPort != 0 && !isDatagram(frame, c.UDPPort) {
		return false
	}
	from, to := v.payload(), v.last
	if c.Headers {
		from, to = v.ip, v.payload()
	}
	if from == to {
		return false
	}
	bit := luck.IntN((to - from) * 8)
	frame[from+bit/8] ^= 1 << (bit % 8)
	if c.Mend {
		v.mend()
	}
	return true
}
