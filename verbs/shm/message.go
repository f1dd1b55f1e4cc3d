package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of the rendezvous.
var (
	// ErrMessage is an invalid rendezvous message.
	ErrMessage = errors.New("malformed rendezvous message")
	// ErrVersion is a peer with another rendezvous or memory layout version.
	ErrVersion = errors.New("rendezvous version mismatch")
	// ErrName is an invalid rendezvous name.
	ErrName = errors.New("malformed rendezvous name")
	// ErrKey is a key that is not offered, or no longer.
	ErrKey = errors.New("rendezvous key not accepted")
	// ErrCredentials is a peer process of another user.
	ErrCredentials = errors.New("peer process of another user")
	// ErrRefused means that the peer refused the call for its own reason.
	ErrRefused = errors.New("rendezvous refused by the peer")
)

// A rendezvous is one packet each way on a SOCK_SEQPACKET socket, with the
// memfd and the doorbells of the sender attached, or a refusal without:
//
//	0  "SMSH"   4 version   5 type   6 vectors (u16)   8 size of the memfd (u64)
//	16 gateway id   32 key (hello)   48 refusal code   49 zero, to 64
//
// All integers are big-endian. The version covers the memory layout too.
const (
	messageMagic   = "SMSH"
	messageVersion = 4
	messageSize    = 64

	typeHello   = 1
	typeWelcome = 2
	typeRefuse  = 3
)

// Refusal codes.
const (
	refuseOther   = 0
	refuseVersion = 1
	refuseKey     = 2
	refuseMemory  = 3
	refuseMessage = 4
)

// refusals maps refusal codes to errors.
var refusals = map[byte]error{
	refuseVersion: ErrVersion, refuseKey: ErrKey, refuseMemory: ErrMemfd, refuseMessage: ErrMessage,
}

type message struct {
	kind    byte
	vectors uint16
	size    uint64
	gateway [16]byte
	key     [16]byte
	code    byte
}

func (m message) encode() []byte {
	b := append(make([]byte, 0, messageSize), messageMagic...)
	b = append(b, messageVersion, m.kind)
	b = binary.BigEndian.AppendUint16(b, m.vectors)
	b = binary.BigEndian.AppendUint64(b, m.size)
	b = append(b, m.gateway[:]...)
	b = append(b, m.key[:]...)
	b = append(b, m.code)
	return append(b, make([]byte, messageSize-49)...)
}

// parseMessage parses a packet. Other versions are recognised whatever follows the version.
func parseMessage(b []byte) (message, error) {
	if len(b) < 5 || string(b[:4]) != messageMagic {
		return message{}, fmt.Errorf("%d bytes: %w", len(b), ErrMessage)
	}
	if b[4] != messageVersion {
		return message{}, fmt.Errorf("version %d: %w", b[4], ErrVersion)
	}
	if len(b) != messageSize {
		return message{}, fmt.Errorf("%d bytes: %w", len(b), ErrMessage)
	}
	m := message{
		kind: b[5], vectors: binary.BigEndian.Uint16(b[6:]), size: binary.BigEndian.Uint64(b[8:]),
		gateway: [16]byte(b[16:32]), key: [16]byte(b[32:48]), code: b[48],
	}
	return m, m.check()
}

func (m message) check() error {
	switch {
	case m.kind == typeRefuse:
		return nil
	case m.kind != typeHello && m.kind != typeWelcome:
		return fmt.Errorf("type %d: %w", m.kind, ErrMessage)
	case m.vectors < 1 || m.vectors > maxVectors:
		return fmt.Errorf("%d vectors: %w", m.vectors, ErrMessage)
	case m.gateway == [16]byte{}:
		return fmt.Errorf("no gateway id: %w", ErrMessage)
	}
	return nil
}

// refusal returns the error of a refusal code.
func refusal(code byte) error {
	if err := refusals[code]; err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return fmt.Errorf("code %d: %w", code, ErrRefused)
}

// refuseCode returns the refusal code for the error of a failed rendezvous.
func refuseCode(err error) byte {
	for code, e := range refusals {
		if errors.Is(err, e) {
			return code
		}
	}
	return refuseOther
}
