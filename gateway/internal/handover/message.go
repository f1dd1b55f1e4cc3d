package handover

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// message is one message of the conversation, a line of JSON. The successor sends a step, and the old gateway answers
// with the same step once it has done it. After an error no more is sent.
type message struct {
	Step step `json:"step,omitempty"`
	// Version is the successor's, for the log. In claim.
	Version string `json:"version,omitempty"`
	// Neighbour is the datapath beside which the successor opens its own. In the answers to look and claim.
	Neighbour *ebpf.Neighbour `json:"neighbour,omitempty"`
	// Main is the process by which the service manager knows the successor; 0: none. In leave.
	Main int `json:"main,omitempty"`
	// Off is the old gateway's kill switch, which may be in no file. In the answer to leave.
	Off bool `json:"off,omitempty"`
	// Error is why the takeover has ended.
	Error string `json:"error,omitempty"`
}

const (
	maxMessage = 4 << 10
	// sayPatience bounds the wait for a message to be taken; there is room for it.
	sayPatience = 5 * time.Second
)

var (
	errLong = errors.New("takeover: a message is too long")
	errLate = errors.New("the takeover lasts too long")
	errGone = errors.New("the other process has given up")
)

// parseMessage parses a line.
func parseMessage(line []byte) (m message, err error) {
	if err = json.Unmarshal(line, &m); err != nil {
		return message{}, fmt.Errorf("takeover: %w", err)
	}
	switch m.Step {
	case "", stepLook, stepClaim, stepYield, stepLeave:
	default:
		return message{}, fmt.Errorf("takeover: no step %q", m.Step)
	}
	switch {
	case (m.Step == "") == (m.Error == ""):
		return message{}, errors.New("takeover: neither a step nor an error")
	case m.Main < 0:
		return message{}, fmt.Errorf("takeover: process %d", m.Main)
	case m.Neighbour != nil:
		if err = m.Neighbour.Validate(); err != nil {
			return message{}, err
		}
	}
	return m, nil
}

// line is one end of a conversation.
type line struct {
	net.Conn
	in *bufio.Reader
}

func newLine(c net.Conn) *line { return &line{c, bufio.NewReaderSize(c, maxMessage)} }

// say sends a message. If it returns nil, the other end can read the message, even if that end shuts down right after.
func (l *line) say(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_ = l.SetWriteDeadline(time.Now().Add(sayPatience))
	_, err = l.Write(append(text, '\n'))
	return err
}

// hear waits for a message.
func (l *line) hear() (message, error) {
	text, err := l.in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return message{}, errLong
	case errors.Is(err, io.EOF):
		return message{}, errGone
	case errors.Is(err, os.ErrDeadlineExceeded):
		return message{}, errLate
	case err != nil:
		return message{}, err
	}
	return parseMessage(text)
}

// hearStep waits for a given step.
func (l *line) hearStep(want step) (message, error) {
	m, err := l.hear()
	if err == nil && m.Step != want {
		err = errOrder
	}
	return m, err
}
