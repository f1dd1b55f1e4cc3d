package ebpf

import (
	"crypto/rand"
	"encoding/binary"
)

// answerRate is how many offers a processor answers in a second. Further offers are left to the kernel (reason
// rate_limit). It is far above the rate of honest peers, and costs a flooded processor about a tenth of its time.
const answerRate = 1 << 16

// newCookieKey returns the secret key of the SYN-ACKs that the programs send. It need not change while the programs
// live, because the hash also covers the tick of the clock.
func newCookieKey() [2]uint64 {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return [2]uint64{binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])}
}

// setWireMTU stores the MTU of the wire, from which SYN-ACKs announce their MSS.
func (d *Datapath) setWireMTU(mtu int) error {
	d.wireMTU.Store(int64(mtu))
	return d.changeControl(func(c *smcgwControl) { c.Mtu = uint32(mtu) })
}

// Shed leaves the offers of peers to the kernel for the given reason until it is called with 0, because the owner has
// no room for another connection. Connections whose offer was answered continue.
func (d *Datapath) Shed(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.Shed = uint32(reason) })
}

// SetProofs bounds the number of peers' connections that reach the wire TUN in a second to what the owner can handle; 0
// means no bound. Once that many have been proved within a second, further offers in it are left to the kernel (reason
// rate_limit).
func (d *Datapath) SetProofs(perSecond int) error {
	return d.setControl(func(c *smcgwControl) { c.Proofs = uint32(max(perSecond, 0)) })
}
