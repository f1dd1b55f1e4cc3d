package ebpf

import "github.com/smcgw/smcgw/packet"

// ProbeSegment rebuilds the probe of an [EventProbe] for [Datapath.InjectApp]. The gateway's socket then answers it on
// behalf of a peer that has been heard.
func ProbeSegment(t Tuple, seq, ack uint32) []byte {
	return packet.Segment{Src: t.Local, Dst: t.Remote, Seq: seq, Ack: ack, Flags: packet.FlagACK, Window: 0xffff}.Append(nil)
}
