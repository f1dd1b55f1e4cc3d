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

// ErrAuth says that a message lacks a valid MAC where one is required, or has one where none is allowed.
var ErrAuth = errors.New("message not authenticated")

const macTLVLen = clc.TLVHeaderLen + MACLen

// Keys are the keys that a gateway shares with its peers. The gateway signs what it initiates with the first key,
// accepts messages made with any of them, and answers with the key of the request. If empty, nothing is authenticated.
// Keys are immutable.
type Keys [][]byte

// Speaker is the side that sends a message. It is part of the MAC, so that a message of one side cannot be replayed as
// one of the other.
type Speaker uint8

// The speakers.
const (
	FromClient Speaker = 1 // the client of the connection, or the gateway that asks
	FromServer Speaker = 2 // the other side
)

// Binding identifies the connection that a handshake is about, or the two ends of a resolution (then both sequence
// numbers are 0). It has the addresses and sequence numbers that are in the packets, so that a message is worthless on
// any other connection.
type Binding struct {
	Client, Server netip.AddrPort
	// ClientISN and ServerISN are the sequence numbers of the SYN and the SYN-ACK.
	ClientISN, ServerISN uint32
}

// Chain is what a MAC covers in addition to its message.
type Chain struct {
	Binding Binding
	From    Speaker
	// Prev is the MAC of the preceding message (docs/PROTOCOL.md "Authentication"), zero if there is none.
	Prev MAC
}

// authLabel separates MACs of this protocol from any other use of the same key.
const authLabel = "smcgw clc 1"

// chainLen is the length of what append appends: label, speaker, two addresses and ports, two sequence numbers,
// previous MAC.
const chainLen = len(authLabel) + 1 + 2*(16+2) + 2*4 + MACLen

// append appends the bytes that the MAC covers ahead of the message.
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

// Seal appends the MAC TLV to the complete CLC message that begins at b[start], updates the length of the message, and
// returns the MAC for the chain.
func Seal(b []byte, start int, key []byte, c Chain) ([]byte, MAC) {
	b = clc.AppendTLV(b, clc.TLVMAC, make([]byte, MACLen))
	b = clc.EndMessage(b, start)
	mac := sum(b[start:], key, &c)
	copy(b[len(b)-MACLen:], mac[:])
	return b, mac
}

// sealed reports whether a complete CLC message ends with a MAC, valid or not.
func sealed(msg []byte) bool {
	tail := len(msg) - macTLVLen
	return tail >= HeaderLen && binary.BigEndian.Uint16(msg[tail:]) == clc.TLVMAC &&
		binary.BigEndian.Uint16(msg[tail+2:]) == MACLen
}

// Verify checks the MAC of a complete CLC message, which must be its last TLV, and returns it for the chain.
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

// Verify checks the MAC of a complete CLC message with each key and returns the key that matches. Without keys it
// refuses a message that has a MAC, because its sender would not accept an answer without one.
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

// First returns the key for what this gateway initiates, or nil if there is none.
func (k Keys) First() []byte {
	if len(k) == 0 {
		return nil
	}
	return k[0]
}

// sum returns HMAC-SHA256(key, chain || message with its MAC zeroed).
func sum(msg, key []byte, c *Chain) MAC {
	var zero MAC
	h := hmac.New(sha256.New, key)
	h.Write(c.append(make([]byte, 0, chainLen)))
	h.Write(msg[:len(msg)-MACLen])
	h.Write(zero[:])
	return MAC(h.Sum(nil))
}
