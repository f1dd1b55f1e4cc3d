package netstack

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/packet"
)

// SYN describes a SYN without ACK that arrived from the wire.
type SYN struct {
	Tuple Tuple
	// ISN is the sequence number of the SYN.
	ISN uint32
	// Offer is true if the SYN carries the offer option; Nonce is its nonce.
	Offer bool
	Nonce uint16
	// Proved is true if the steering program has answered the SYN on the stack's behalf without keeping it, and the
	// client has echoed that answer. There is no SYN to pass on then.
	Proved bool
	// Raw is a copy of the whole IP packet and belongs to the receiver. With Proved it is rebuilt, under the network
	// header of the packet that proved it, and is valid only during the call.
	Raw []byte
}

// SYNACK describes a SYN-ACK that arrived for a tuple the stack does not know.
type SYNACK struct {
	Tuple Tuple
	// Raw is a copy of the whole IP packet; it belongs to the receiver.
	Raw []byte
}

// Confirmation tells whether the client of an accepted connection is a gateway: every segment of a gateway that starts
// at ISN+1 carries the confirm option (docs/PROTOCOL.md "TCP option").
type Confirmation uint8

const (
	// ConfirmUnknown: no segment that starts at ISN+1 has been seen yet.
	ConfirmUnknown Confirmation = iota
	// ConfirmYes: one carried the confirm option with the nonce of the offer.
	ConfirmYes
	// ConfirmNo: one arrived, without the option or with another nonce.
	ConfirmNo
)

// Errors of this package. Connection errors are syscall.Errno values, io.EOF
// and net.ErrClosed, so that errors.Is works as with the net package.
var (
	// ErrWouldBlock is returned by Conn.Read and Conn.Write when they can make no progress now. The notify function is
	// called when that changes.
	ErrWouldBlock = errors.New("operation would block")
	// ErrOverload: a bound of Limits has been reached.
	ErrOverload = errors.New("netstack limit reached")
	// ErrReplaced: a newer connection on the same tuple has taken this one's place.
	ErrReplaced = errors.New("replaced by a newer connection")
	// ErrAdopted: Adopt was already called for this connection.
	ErrAdopted = errors.New("already adopted")
	// errRepeated: two segments proved the same flow concurrently.
	errRepeated = errors.New("repeated syn")
	// ErrPacket: the given bytes are not the expected packet.
	ErrPacket = errors.New("malformed packet")
)

// optionSpace is the size of our option behind two NOPs, which keep the header a multiple of four bytes.
const optionSpace = packet.OptionLen + 2

// appendOption appends two NOPs and the option.
func appendOption(b []byte, role packet.Role, nonce uint16) []byte {
	b = append(b, packet.KindNOP, packet.KindNOP)
	return packet.AppendOption(b, packet.Option{Version: packet.OptionVersion, Role: role, Nonce: nonce})
}

// confirmSegment rebuilds an outbound segment that starts at ISN+1 with the confirm option. If option and payload do
// not fit into one packet, or if p is a super-packet, which the kernel would segment with the option in every piece, a
// first segment with the option leaves alone and the rest follows it.
func confirmSegment(f *flow, p *stack.PacketBuffer, ip []byte, t packet.TCP) ([]*stack.PacketBuffer, bool) {
	old := t[packet.TCPMinLen:]
	room := packet.TCPMaxLen - packet.TCPMinLen - optionSpace
	opts := append(make([]byte, 0, packet.TCPMaxLen), old...)
	if len(opts) > room {
		opts = t.Options().AppendWithoutSACK(opts[:0])
	}
	if len(opts) > room { // cannot happen: gVisor sends only timestamps and SACK
		return nil, true
	}
	opts = appendOption(opts, packet.RoleConfirm, f.nonce)
	payload := p.Data().AsRange().ToSlice()
	limit := max(int(f.segMax.Load())-packet.TCPMinLen-len(opts), 1)
	if len(payload) <= limit {
		return []*stack.PacketBuffer{buildTCP(ip, t, opts, payload)}, false
	}
	var head [packet.TCPMinLen]byte
	copy(head[:], t)
	head[13] &^= packet.FlagFIN | packet.FlagPSH
	first := buildTCP(ip, head[:], opts, payload[:limit])
	copy(head[:], t)
	packet.TCP(head[:]).SetSeq(t.Seq() + uint32(limit))
	rest := buildTCP(ip, head[:], old, payload[limit:])
	if link.Offloaded(p) {
		rest.GSOOptions = p.GSOOptions
		n := rest.NetworkHeader().Slice()
		packet.TCP(rest.TransportHeader().Slice()).SetChecksum(packet.PseudoSum(n, packet.ProtoTCP, rest.Size()-len(n)))
	}
	return []*stack.PacketBuffer{first, rest}, false
}

// noteConfirm checks an inbound segment of a server flow for the confirm option. A positive result is final. A later
// segment may still change a negative one, since a box may strip the option from one segment and pass it on another.
func (f *flow) noteConfirm(t packet.TCP) {
	if t.Seq() != f.isn+1 || t.Flags()&packet.FlagSYN != 0 {
		return
	}
	old := Confirmation(f.serve.confirm.Load())
	if old == ConfirmYes {
		return
	}
	verdict := ConfirmNo
	if o := packet.ParseTCPOptions(t.Options()); o.Option.Role == packet.RoleConfirm && o.Option.Nonce == f.nonce {
		verdict = ConfirmYes
	}
	f.serve.confirm.CompareAndSwap(uint32(old), uint32(verdict))
}
