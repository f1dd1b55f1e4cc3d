package negotiate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// MACLen is the size of the message authentication code, HMAC-SHA256.
const MACLen = sha256.Size

// MAC authenticates one CLC message and, through the chain, every message before it in the same handshake.
type MAC [MACLen]byte

// ErrAuth says that a message that must be authenticated is not.
var ErrAuth = errors.New("message not authenticated")

const macTLVLen = tlvHeaderLen + MACLen

// Seal appends the MAC TLV to the complete CLC message that begins at b[start] and fixes its length. prev is the MAC of
// the message before it in this handshake (zero for a PROPOSAL), so that an ACCEPT answers only its own PROPOSAL and a
// CONFIRM only its own ACCEPT: replayed messages fit nowhere.
func Seal(b []byte, start int, key []byte, prev MAC) ([]byte, MAC) {
	b = appendTLV(b, tlvMAC, make([]byte, MACLen))
	b = endMessage(b, start)
	mac := sum(b[start:], key, prev)
	copy(b[len(b)-MACLen:], mac[:])
	return b, mac
}

// Verify checks the MAC of one whole CLC message, which must be its last TLV, and returns it for the chain.
func Verify(msg, key []byte, prev MAC) (MAC, error) {
	tail := len(msg) - macTLVLen
	if tail < HeaderLen || binary.BigEndian.Uint16(msg[tail:]) != tlvMAC ||
		binary.BigEndian.Uint16(msg[tail+2:]) != MACLen {
		return MAC{}, fmt.Errorf("clc message without a mac: %w", ErrAuth)
	}
	got := MAC(msg[tail+tlvHeaderLen:])
	if mac := sum(msg, key, prev); !hmac.Equal(mac[:], got[:]) {
		return MAC{}, fmt.Errorf("clc message with a wrong mac: %w", ErrAuth)
	}
	return got, nil
}

// sum is HMAC-SHA256(key, prev || message with a zeroed MAC).
func sum(msg, key []byte, prev MAC) MAC {
	var zero MAC
	h := hmac.New(sha256.New, key)
	h.Write(prev[:])
	h.Write(msg[:len(msg)-MACLen])
	h.Write(zero[:])
	return MAC(h.Sum(nil))
}
