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

// The control connection. The measuring host opens it with 8 bytes, magic and version; everything after that is
// messages, each a JSON object on a line of at most 2 KiB.
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
// An unexpected or malformed message ends the connection. A server refuses an unknown version.
const (
	controlMagic   = "SMGC"
	dataMagic      = "SMGB"
	dataVersion    = 1
	controlVersion = 4

	openingSize = 8
	maxLine     = 2 << 10
	maxText     = 256
)

// Lengths of secrets.
const (
	nonceSize   = 16
	proofSize   = 32
	sessionSize = 16
)

// Errors of the parsers. errShort means that more bytes are needed; the others are final.
var (
	errShort = errors.New("message not complete")

	// ErrProtocol is wrapped by every error about what the peer sent.
	ErrProtocol = errors.New("not the protocol of smcgw bench")

	// ErrRefused is wrapped by the error with the server's reason for refusing.
	ErrRefused = errors.New("refused by the serving host")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// message is a message of either side. It has only the fields of its purpose.
type message struct {
	// Nonce is the challenge for the other side's proof.
	Nonce []byte `json:"nonce,omitempty"`
	// Proof proves that the sender knows the token.
	Proof []byte `json:"proof,omitempty"`
	// Session is the session that the orders of data connections refer to.
	Session []byte `json:"session,omitempty"`
	// Note says what the serving host's gateway will not do.
	Note string `json:"note,omitempty"`
	// NoProgram is why [Program] cannot serve there; empty: it can.
	NoProgram string `json:"no_program,omitempty"`
	// Refused is why the server ends the connection.
	Refused string   `json:"refused,omitempty"`
	Ask     question `json:"ask,omitempty"`
	Meters  *reading `json:"meters,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
}

// question is a request of the measuring host.
type question string

const (
	askMeters question = "meters"
	askMemory question = "memory"
	// These select who serves from now on: [Program], without or with the library, or the server itself.
	askProgram question = "program"
	askLibrary question = "program with library"
	askOwn     question = "own"
)

// reading is the state of the server's meters, which only grow.
type reading struct {
	// OwnCPU and GatewayCPU are the CPU time, in nanoseconds, of the serving program and of the daemon beside it: 0 if
	// there is none, unknownCPU if it cannot be seen.
	OwnCPU     uint64 `json:"own_cpu"`
	GatewayCPU uint64 `json:"gateway_cpu"`
	// Received and Sent count bytes of the works, Conns their connections.
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	Conns    uint64 `json:"conns"`
}

const unknownCPU = ^uint64(0)

// parseMessage parses a line.
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

// cut bounds the length of a text without splitting a character.
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

// receive waits for the next message. An invalid message is [ErrProtocol], a refusal [ErrRefused].
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

// opening returns the first bytes of a control connection.
func opening(version uint8) []byte { return append([]byte(controlMagic), version, 0, 0, 0) }
