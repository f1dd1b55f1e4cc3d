package report

import "slices"

// copies is what carrying copies: on a path, per byte of an application, and
// what its device counts for itself. The copies of applications' own reads and
// writes and those that every TCP connection costs there are not ours.
//
//	shm    socket ─► peer's ring; ring ─► socket
//	hw, ib socket ─► send buffer; ring ─► socket
//	soft   socket ─► send buffer, ─► UDP socket; UDP socket ─►, ─► ring ─► socket
//	relay  socket ─►, ─► netstack ─► TUN; TUN ─► netstack ─►, ─► socket
type copies struct {
	tx, rx uint64   // per byte
	device []string // counters of bytes that the device's own sockets copied
}

// copiesOf says what each carrier copies.
func copiesOf(c Carrier) copies {
	switch c {
	case CarrierShm, CarrierHW, CarrierIB:
		return copies{tx: 1, rx: 1}
	case CarrierSoft:
		return copies{tx: 1, rx: 2, device: []string{"tx_bytes", "rx_bytes"}}
	default:
		return copies{tx: 3, rx: 3}
	}
}

// copiedBytes returns how many bytes were copied so far to carry connections, by
// us and by the kernel for us, per carrier. Divided by BytesTotal it is the
// number of copies per byte, retransmissions and headers included.
func copiedBytes(s *Snapshot) map[Carrier]uint64 {
	all := map[Carrier]uint64{}
	for carrier, n := range withCarriers(s.BytesTotal) {
		per := copiesOf(carrier)
		all[carrier] = per.tx*n.Tx + per.rx*n.Rx
		for _, d := range slices.Concat(s.Devices, s.Ended) {
			if d.Carrier != carrier {
				continue
			}
			for _, name := range per.device {
				all[carrier] += d.Counters[name]
			}
		}
	}
	return all
}
