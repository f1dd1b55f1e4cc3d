package testnet

import "math/rand/v2"

// Corruption flips a bit in some packets, as bad memory in a box does: the check
// of the Ethernet frame is right, what is in it is not.
type Corruption struct {
	// Chance, per mille, of a packet.
	Chance int
	// Headers flips a bit in the IP or transport header instead of the payload.
	Headers bool
	// Mend makes the transport's checksum right again, as a box does that
	// computes it after it has gone wrong.
	Mend bool
	// UDPPort, if not 0, leaves everything else than datagrams from or to it alone.
	UDPPort uint16
}

// apply reports whether it flipped a bit.
func (c Corruption) apply(frame []byte, luck *rand.Rand) bool {
	if c.Chance == 0 || luck.IntN(1000) >= c.Chance {
		return false
	}
	v, ok := viewPacket(frame)
	if !ok || v.neighbour() || c.UDPPort != 0 && !v.isUDP(c.UDPPort) {
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
