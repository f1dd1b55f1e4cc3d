package report

import "slices"

// copies is what carrying copies: per byte of the application on each path, and what the device
// itself counts. It excludes the copies of the applications' own reads and writes, and those
// that every TCP connection costs there.
//
//	shm    socket ─► peer's ring; ring ─► socket
//	hw, ib socket ─► send buffer; ring ─► socket
//	soft   socket ─► send buffer, ─► UDP socket; UDP socket ─►, ─► ring ─► socket
//	relay  socket ─►, ─► netstack ─► TUN; TUN ─► netstack ─►, ─► socket
type copies struct {
	tx, rx uint64   // copies per byte
	device []string // counters of bytes copied by the device's own sockets
}

// copiesOf returns what a carrier copies.
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

// copiedBytes returns, per carrier, how many bytes have been copied to carry connections, by
// the gateway and by the kernel for it. Divided by BytesTotal it is the number of copies per
// byte, including retransmissions and headers.
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
