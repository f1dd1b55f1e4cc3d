package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// The control connection. The measuring host opens it with 8 bytes, magic and
// version; all that follows are messages of a type, a zero byte, the length of
// the body in two bytes, and the body. Integers are big-endian.
//
//	measuring                serving
//	opening ───────────────►
//	◄─────────────────────── challenge{nonce}
//	hello{nonce, proof} ───►
//	◄─────────────────────── welcome{proof, session, note}   or refusal{code, text}
//	sample{id} ────────────►                                 as often as wanted
//	◄─────────────────────── reading{id, meters}
//	weigh{id} ─────────────►
//	◄─────────────────────── weight{id, memory}
//
// A message that is not expected, or is malformed, ends the connection. A server
// refuses a version that it does not know.
const (
	controlMagic   = "SMGC"
	dataMagic      = "SMGB"
	dataVersion    = 1
	controlVersion = 2

	openingSize = 8
	headerSize  = 4
	maxBody     = 512
	maxText     = 256
)

type messageType uint8

const (
	typeChallenge messageType = 1 + iota
	typeHello
	typeWelcome
	typeSample
	typeReading
	typeRefusal
	typeWeigh
	typeWeight
)

// The lengths of secrets on the wire.
const (
	nonceSize   = 16
	proofSize   = 32
	sessionSize = 16
)

// Errors of the parsers. errShort wants more bytes; the others are final.
var (
	errShort = errors.New("message not complete")

	// ErrProtocol is wrapped by every error about what the other side sent.
	ErrProtocol = errors.New("not the protocol of smcgw bench")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// message is one of challenge, hello, welcome, sample, reading, refusal, weigh, weight.
type message interface {
	kind() messageType
	appendBody(b []byte) []byte
}

// challenge is what the server wants to see signed.
type challenge struct{ nonce [nonceSize]byte }

// hello proves that the client knows the token.
type hello struct {
	nonce [nonceSize]byte
	proof [proofSize]byte
}

// welcome proves that the server does, and opens a session. The note says what
// the serving host's gateway will not do; empty if all is well.
type welcome struct {
	proof   [proofSize]byte
	session [sessionSize]byte
	note    string
}

// sample asks for a reading.
type sample struct{ id uint32 }

// reading is the state of the server's meters, all of which only grow.
type reading struct {
	id uint32
	// ownCPU and gatewayCPU are processor nanoseconds of the serving program
	// and of the daemon beside it: 0 if none, unknownCPU if it cannot be
	// seen.
	ownCPU, gatewayCPU uint64
	// received and sent count bytes of the works, conns their connections.
	received, sent, conns uint64
}

const unknownCPU = ^uint64(0)

// weigh asks for a weight.
type weigh struct{ id uint32 }

// weight is what the gateway beside the server has now.
type weight struct {
	id     uint32
	memory Memory
}

// refusal ends a connection with words.
type refusal struct {
	code refusalCode
	text string
}

type refusalCode uint16

const (
	refusedToken refusalCode = 1 + iota
	refusedBusy
	refusedVersion
)

func (challenge) kind() messageType { return typeChallenge }
func (hello) kind() messageType     { return typeHello }
func (welcome) kind() messageType   { return typeWelcome }
func (sample) kind() messageType    { return typeSample }
func (reading) kind() messageType   { return typeReading }
func (refusal) kind() messageType   { return typeRefusal }
func (weigh) kind() messageType     { return typeWeigh }
func (weight) kind() messageType    { return typeWeight }

func (m challenge) appendBody(b []byte) []byte { return append(b, m.nonce[:]...) }

func (m hello) appendBody(b []byte) []byte { return append(append(b, m.nonce[:]...), m.proof[:]...) }

func (m welcome) appendBody(b []byte) []byte {
	return append(append(append(b, m.proof[:]...), m.session[:]...), cut(m.note)...)
}

func (m sample) appendBody(b []byte) []byte { return binary.BigEndian.AppendUint32(b, m.id) }

func (m reading) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.id)
	for _, v := range []uint64{m.ownCPU, m.gatewayCPU, m.received, m.sent, m.conns} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

func (m weigh) appendBody(b []byte) []byte { return binary.BigEndian.AppendUint32(b, m.id) }

func (m weight) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.id)
	for _, v := range m.memory.values() {
		b = binary.BigEndian.AppendUint64(b, *v)
	}
	return b
}

func (m refusal) appendBody(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(m.code)), cut(m.text)...)
}

// cut bounds a text without breaking a character.
func cut(s string) string {
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

// appendMessage writes a message with its header.
func appendMessage(b []byte, m message) []byte {
	at := len(b)
	b = m.appendBody(append(b, byte(m.kind()), 0, 0, 0))
	binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at-headerSize))
	return b
}

// parseMessage reads the first message of b and returns its length.
func parseMessage(b []byte) (message, int, error) {
	if len(b) < headerSize {
		return nil, 0, errShort
	}
	kind, n := messageType(b[0]), int(binary.BigEndian.Uint16(b[2:]))
	if b[1] != 0 || n > maxBody || kind < typeChallenge || kind > typeWeight {
		return nil, 0, malformed("header %x", b[:headerSize])
	}
	if len(b) < headerSize+n {
		return nil, 0, errShort
	}
	m, err := parseBody(kind, b[headerSize:headerSize+n])
	if err != nil {
		return nil, 0, err
	}
	return m, headerSize + n, nil
}

// bodySizes are the lengths of bodies; texts follow where text is true.
var bodySizes = [...]struct {
	size int
	text bool
}{
	typeChallenge: {nonceSize, false}, typeHello: {nonceSize + proofSize, false},
	typeWelcome: {proofSize + sessionSize, true}, typeSample: {4, false},
	typeReading: {4 + 5*8, false}, typeRefusal: {2, true},
	typeWeigh: {4, false}, typeWeight: {4 + 6*8, false},
}

func parseBody(kind messageType, b []byte) (message, error) {
	want := bodySizes[kind]
	if len(b) < want.size || len(b) > want.size && !want.text {
		return nil, malformed("body of %d bytes in a message of type %d", len(b), kind)
	}
	text := b[want.size:]
	if len(text) > maxText || !utf8.Valid(text) {
		return nil, malformed("text of %d bytes in a message of type %d", len(text), kind)
	}
	switch kind {
	case typeChallenge:
		return challenge{[nonceSize]byte(b)}, nil
	case typeHello:
		return hello{[nonceSize]byte(b), [proofSize]byte(b[nonceSize:])}, nil
	case typeWelcome:
		return welcome{[proofSize]byte(b), [sessionSize]byte(b[proofSize:]), string(text)}, nil
	case typeSample:
		return sample{binary.BigEndian.Uint32(b)}, nil
	case typeReading:
		u := func(i int) uint64 { return binary.BigEndian.Uint64(b[4+8*i:]) }
		return reading{binary.BigEndian.Uint32(b), u(0), u(1), u(2), u(3), u(4)}, nil
	case typeWeigh:
		return weigh{binary.BigEndian.Uint32(b)}, nil
	case typeWeight:
		w := weight{id: binary.BigEndian.Uint32(b)}
		for i, v := range w.memory.values() {
			*v = binary.BigEndian.Uint64(b[4+8*i:])
		}
		return w, nil
	default:
		return refusal{refusalCode(binary.BigEndian.Uint16(b)), string(text)}, nil
	}
}

// opening is how a control connection begins.
func opening(version uint8) []byte { return append([]byte(controlMagic), version, 0, 0, 0) }
