package ebpf

import "encoding/binary"

// ProbeSegment is the probe of an [EventProbe] again, for [Datapath.InjectApp]: the
// gateway socket answers it in the place of a peer that has been heard.
func ProbeSegment(t Tuple, seq, ack uint32) []byte {
	src, dst := t.Local.Addr().AsSlice(), t.Remote.Addr().AsSlice()
	var pkt []byte
	if t.Local.Addr().Is4() {
		pkt = append(pkt, version4|5, 0, 0, ip4Len+tcpLen, 0, 0, 0x40, 0, 64, protocolTCP, 0, 0)
		pkt = append(append(pkt, src...), dst...)
		binary.BigEndian.PutUint16(pkt[10:], ^fold16(add16(0, pkt)))
	} else {
		pkt = append(pkt, version6, 0, 0, 0, 0, tcpLen, protocolTCP, 64)
		pkt = append(append(pkt, src...), dst...)
	}
	pkt = binary.BigEndian.AppendUint16(pkt, t.Local.Port())
	pkt = binary.BigEndian.AppendUint16(pkt, t.Remote.Port())
	pkt = binary.BigEndian.AppendUint32(pkt, seq)
	pkt = binary.BigEndian.AppendUint32(pkt, ack)
	const flagACK = 0x10
	return append(pkt, tcpLen/4<<4, flagACK, 0xff, 0xff, 0, 0, 0, 0)
}
