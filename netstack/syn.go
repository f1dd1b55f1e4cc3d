package netstack

import (
	"errors"

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

// String returns "unknown", "yes" or "no".
func (c Confirmation) String() string {
	switch c {
	case ConfirmYes:
		return "yes"
	case ConfirmNo:
		return "no"
	default:
		return "unknown"
	}
}

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
