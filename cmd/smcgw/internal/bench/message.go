package bench

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
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

// work is the purpose of a data connection.
type work uint8

// The works. The first bytes of a data connection, its order, select one.
const (
	// workUpload: the server reads to the end and answers with the number of bytes, 8 bytes long.
	workUpload work = 1 + iota
	// workDownload: the server writes for a time and closes.
	workDownload
	// workEcho: the server sends back what it receives.
	workEcho
	// workRequest: the server answers with size bytes and closes.
	workRequest
)

// The limits of an order; a server refuses larger ones.
const (
	maxOrderSize = 1 << 20
	maxOrderTime = time.Minute
)

// orderSize is the length of an order: magic(4) version(1) work(1) zero(2) size(4) milliseconds(4) session(16). It also
// is the request.
const orderSize = 32

// order requests a work in a session.
type order struct {
	work    work
	size    uint32 // size of the answer to a request, or of the messages of an echo
	time    time.Duration
	session [sessionSize]byte
}

func (o order) bytes() []byte {
	b := append([]byte(dataMagic), dataVersion, byte(o.work), 0, 0)
	b = binary.BigEndian.AppendUint32(b, o.size)
	b = binary.BigEndian.AppendUint32(b, uint32(o.time.Milliseconds()))
	return append(b, o.session[:]...)
}

// parseOrder parses an order and refuses one beyond the limits.
func parseOrder(b []byte) (o order, err error) {
	if len(b) < orderSize {
		return o, errShort
	}
	o = order{
		work: work(b[5]), size: binary.BigEndian.Uint32(b[8:]),
		time: time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Millisecond, session: [sessionSize]byte(b[16:]),
	}
	switch {
	case string(b[:4]) != dataMagic || b[4] != dataVersion || b[6] != 0 || b[7] != 0:
		return order{}, malformed("order %x", b[:8])
	case o.work < workUpload || o.work > workRequest:
		return order{}, malformed("work %d", o.work)
	case o.size > maxOrderSize:
		return order{}, malformed("size %d, more than %d", o.size, maxOrderSize)
	case o.time > maxOrderTime:
		return order{}, malformed("%v of work, more than %v", o.time, maxOrderTime)
	}
	return o, nil
}

// Token is the secret that lets a host measure against a server: a client that has it may make the server send and
// receive as fast as it can. It is never transmitted.
type Token [16]byte

// ErrToken is an invalid token.
var ErrToken = errors.New("no token of smcgw bench --serve: 26 letters and digits")

var tokenText = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewToken makes a token.
func NewToken() (t Token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// String returns the token as text for users.
func (t Token) String() string { return strings.ToLower(tokenText.EncodeToString(t[:])) }

// ParseToken parses the output of String, in either case.
func ParseToken(s string) (t Token, err error) {
	b, err := tokenText.DecodeString(strings.ToUpper(strings.TrimSpace(s)))
	if err != nil || len(b) != len(t) {
		return t, ErrToken
	}
	return Token(b), nil
}

// proof proves that its maker knows the token. It includes the maker's side, so that one side's proof cannot be
// replayed as the other's.
func (t Token) proof(side string, server, client [nonceSize]byte) (p [proofSize]byte) {
	m := hmac.New(sha256.New, t[:])
	m.Write([]byte("smcgw bench " + side))
	m.Write(server[:])
	m.Write(client[:])
	copy(p[:], m.Sum(nil))
	return p
}

// The makers of proofs.
const (
	measuring = "measuring"
	serving   = "serving"
)

func equal(a, b [proofSize]byte) bool { return hmac.Equal(a[:], b[:]) }
