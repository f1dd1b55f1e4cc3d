package ebpf

import "github.com/smcgw/smcgw/packet"

// ProbeSegment is the probe of an [EventProbe] again, for [Datapath.InjectApp]: the
// gateway socket answers it in the place of a peer that has been heard.
func ProbeSegment(t Tuple, seq, ack uint32) []byte {
	return packet.Segment{Src: t.Local, Dst: t.Remote, Seq: seq, Ack: ack, Flags: packet.FlagACK, Window: 0xffff}.Append(nil)
}
