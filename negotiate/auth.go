package negotiate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// MACLen is the size of the message authentication code, HMAC-SHA256.
const MACLen = sha256.Size

// MAC authenticates one CLC message and, through the chain, every message before it in the same exchange.
type MAC [MACLen]byte

// ErrAuth says that a message is not authenticated and must be, or is and must not.
var ErrAuth = errors.New("message not authenticated")

const macTLVLen = clc.TLVHeaderLen + MACLen

// Keys are the keys a gateway shares with its peers. The first one authenticates what it begins itself, all of them are
// believed, and an answer uses the key that the question has used. None: nothing is authenticated. A Keys is never
// changed.
type Keys [][]byte

// Speaker is the sender of a message: what one side says can never pass as the words of the other.
type Speaker uint8

// The speakers.
const (
	FromClient Speaker = 1 // of the connection, or the gateway that asks
	FromServer Speaker = 2 // the other one
)

// Binding names the connection a handshake is about, or the two ends of a resolution (then both sequence numbers are 0). Its
// addresses and sequence numbers are those of the packets, so that a message is worth nothing on another connection.
type Binding struct {
	Client, Server netip.AddrPort
	// ClientISN and ServerISN are the sequence numbers of SYN and SYN-ACK.
	ClientISN, ServerISN uint32
}

// Chain is what a MAC covers besides its message.
type Chain struct {
	Binding Binding
	From    Speaker
	// Prev is the MAC of the message before (docs/PROTOCOL.md "Authentication"); zero if none.
	Prev MAC
}

// authLabel keeps MACs of this protocol apart from whatever else the key may be used for.
const authLabel = "smcgw clc 1"

// chainLen: label, speaker, two addresses and ports, two sequence numbers, previous MAC.
const chainLen = len(authLabel) + 1 + 2*(16+2) + 2*4 + MACLen

// append appends the bytes that the MAC covers in front of the message.
func (c *Chain) append(b []byte) []byte {
	b = append(b, authLabel...)
	b = append(b, uint8(c.From))
	for _, end := range []netip.AddrPort{c.Binding.Client, c.Binding.Server} {
		ip := end.Addr().As16()
		b = append(b, ip[:]...)
		b = binary.BigEndian.AppendUint16(b, end.Port())
	}
	b = binary.BigEndian.AppendUint32(b, c.Binding.ClientISN)
	b = binary.BigEndian.AppendUint32(b, c.Binding.ServerISN)
	return append(b, c.Prev[:]...)
}

// Seal appends the MAC TLV to the complete CLC message that begins at b[start], fixes its length and returns the MAC for
// the chain.
func Seal(b []byte, start int, key []byte, c Chain) ([]byte, MAC) {
	b = clc.AppendTLV(b, clc.TLVMAC, make([]byte, MACLen))
	b = clc.EndMessage(b, start)
	mac := sum(b[start:], key, &c)
	copy(b[len(b)-MACLen:], mac[:])
	return b, mac
}

// sealed reports whether a whole CLC message ends with a MAC, right or wrong.
func sealed(msg []byte) bool {
	tail := len(msg) - macTLVLen
	return tail >= HeaderLen && binary.BigEndian.Uint16(msg[tail:]) == clc.TLVMAC &&
		binary.BigEndian.Uint16(msg[tail+2:]) == MACLen
}

// Verify checks the MAC of one whole CLC message, which must be its last TLV, and returns it for the chain.
func Verify(msg, key []byte, c Chain) (MAC, error) {
	if !sealed(msg) {
		return MAC{}, fmt.Errorf("clc message without a mac: %w", ErrAuth)
	}
	got := MAC(msg[len(msg)-MACLen:])
	if mac := sum(msg, key, &c); !hmac.Equal(mac[:], got[:]) {
		return MAC{}, fmt.Errorf("clc message with a wrong mac: %w", ErrAuth)
	}
	return got, nil
}

// Verify checks the MAC of one whole CLC message with each key and returns the one that fits. Without keys a message that
// has a MAC is refused: its sender would not believe the answer.
func (k Keys) Verify(msg []byte, c Chain) (key []byte, mac MAC, err error) {
	if len(k) == 0 {
		if sealed(msg) {
			err = fmt.Errorf("clc message with a mac, and no key here: %w", ErrAuth)
		}
		return nil, MAC{}, err
	}
	for _, key := range k {
		if mac, err = Verify(msg, key, c); err == nil {
			return key, mac, nil
		}
	}
	return nil, MAC{}, err
}

// First returns the key for what this gateway begins; nil: none.
func (k Keys) First() []byte {
	if len(k) == 0 {
		return nil
	}
	return k[0]
}

// sum is HMAC-SHA256(key, chain || message with a zeroed MAC).
func sum(msg, key []byte, c *Chain) MAC {
	var zero MAC
	h := hmac.New(sha256.New, key)
	h.Write(c.append(make([]byte, 0, chainLen)))
	h.Write(msg[:len(msg)-MACLen])
	h.Write(zero[:])
	return MAC(h.Sum(nil))
}
