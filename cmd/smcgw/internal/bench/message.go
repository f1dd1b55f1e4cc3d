package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"unicode/utf8"
)

// The control connection. The measuring host opens it with 8 bytes, magic and version; all that
// follows are messages, each an object of JSON on a line of at most 2 KiB.
//
//	measuring                serving
//	opening ───────────────►
//	◄─────────────────────── nonce
//	nonce, proof ──────────►
//	◄─────────────────────── proof, session, note    or refused
//	ask: meters ───────────►                         as often as wanted
//	◄─────────────────────── meters
//	ask: memory ───────────►
//	◄─────────────────────── memory
//	ask: program ──────────►                         or program with library, own
//	◄─────────────────────── note, if it does not
//
// A message that is not expected, or is malformed, ends the connection. A server refuses a version
// that it does not know.
const (
	controlMagic   = "SMGC"
	dataMagic      = "SMGB"
	dataVersion    = 1
	controlVersion = 4

	openingSize = 8
	maxLine     = 2 << 10
	maxText     = 256
)

// The lengths of secrets.
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

	// ErrRefused is wrapped by the error that says why the server refused.
	ErrRefused = errors.New("refused by the serving host")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// message is what one side says. Only what belongs together is there.
type message struct {
	// Nonce is what the other side's proof must be of.
	Nonce []byte `json:"nonce,omitempty"`
	// Proof is that the sender knows the token.
	Proof []byte `json:"proof,omitempty"`
	// Session is what the orders of data connections name.
	Session []byte `json:"session,omitempty"`
	// Note says what the serving host's gateway will not do.
	Note string `json:"note,omitempty"`
	// NoProgram is why [Program] cannot serve there; empty: it can.
	NoProgram string `json:"no_program,omitempty"`
	// Refused is why the server goes.
	Refused string   `json:"refused,omitempty"`
	Ask     question `json:"ask,omitempty"`
	Meters  *reading `json:"meters,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
}

// question is what the measuring host wants to know.
type question string

const (
	askMeters question = "meters"
	askMemory question = "memory"
	// Who serves what follows: [Program], without the library or with it, or the server itself.
	askProgram question = "program"
	askLibrary question = "program with library"
	askOwn     question = "own"
)

// reading is the state of the server's meters, all of which only grow.
type reading struct {
	// OwnCPU and GatewayCPU are processor nanoseconds of the serving program and of the daemon
	// beside it: 0 if none, unknownCPU if it cannot be seen.
	OwnCPU     uint64 `json:"own_cpu"`
	GatewayCPU uint64 `json:"gateway_cpu"`
	// Received and Sent count bytes of the works, Conns their connections.
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	Conns    uint64 `json:"conns"`
}

const unknownCPU = ^uint64(0)

// parseMessage reads a line.
func parseMessage(line []byte) (m message, err error) {
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, malformed("%v", err)
	}
	sized := func(b []byte, size int) bool { return len(b) == 0 || len(b) == size }
	if !sized(m.Nonce, nonceSize) || !sized(m.Proof, proofSize) || !sized(m.Session, sessionSize) || len(m.Note) > maxText || len(m.NoProgram) > maxText || len(m.Refused) > maxText {
		return message{}, malformed("a secret or a text of another size")
	}
	return m, nil
}

// cut bounds a text without breaking a character.
func cut(s string) string {
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

// talk is one end of a control connection.
type talk struct {
	net.Conn
	in *bufio.Reader
}

func newTalk(c net.Conn) *talk { return &talk{c, bufio.NewReaderSize(c, maxLine)} }

func (t *talk) send(m message) error {
	m.Note, m.NoProgram, m.Refused = cut(m.Note), cut(m.NoProgram), cut(m.Refused)
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = t.Write(append(b, '\n'))
	return err
}

// receive waits for the next message. What is no message is [ErrProtocol], and a refusal
// [ErrRefused].
func (t *talk) receive() (message, error) {
	line, err := t.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return message{}, malformed("a line of more than %d bytes", maxLine)
	case errors.Is(err, io.EOF):
		return message{}, io.ErrUnexpectedEOF
	case err != nil:
		return message{}, err
	}
	m, err := parseMessage(line)
	if err == nil && m.Refused != "" {
		err = fmt.Errorf("%w: %q", ErrRefused, m.Refused)
	}
	return m, err
}

// opening is how a control connection begins.
func opening(version uint8) []byte { return append([]byte(controlMagic), version, 0, 0, 0) }
