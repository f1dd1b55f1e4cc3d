package ebpf

import (
	"crypto/rand"
	"encoding/binary"
)

// answerRate is how many offers a processor answers in a second; what comes beyond is
// left to the kernel (reason rate_limit). It is far above what honest peers begin, and
// costs a processor that is flooded about a tenth of its time.
const answerRate = 1 << 16

// newCookieKey makes the secret of the SYN-ACKs that the programs send. It lasts as
// long as the programs do: each tick of the clock has a function of its own.
func newCookieKey() [2]uint64 {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return [2]uint64{binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])}
}

// setWireMTU remembers the MTU of the wire, which SYN-ACKs announce.
func (d *Datapath) setWireMTU(mtu int) error {
	d.wireMTU.Store(int64(mtu))
	return d.changeControl(func(c *smcgwControl) { c.Mtu = uint32(mtu) })
}

// Shed leaves the offers of peers to the kernel for a reason, until it is called with 0:
// the owner has no room for another connection. What was answered goes on.
func (d *Datapath) Shed(reason uint8) error {
	return d.setControl(func(c *smcgwControl) { c.Shed = uint32(reason) })
}

// SetProofs bounds the connections of peers that W gets in a second, as the owner
// can take them on; 0: any number. When so many have been proved in a second, further
// offers of it are left to the kernel (reason rate_limit).
func (d *Datapath) SetProofs(perSecond int) error {
	return d.setControl(func(c *smcgwControl) { c.Proofs = uint32(max(perSecond, 0)) })
}
