package handover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
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

const (
	// claimPatience bounds the wait for the first answer.
	claimPatience = 10 * time.Second
	// stepPatience bounds a step; the longest moves connections to another carrier.
	stepPatience = 30 * time.Second
	// endPatience is how long a gateway whose takeover was refused has to end by itself.
	endPatience = 15 * time.Second
	// finishPatience is how long the old gateway has to name this process to the service manager.
	finishPatience = 5 * time.Second
)

var (
	// errEnded is returned if the old gateway has ended the takeover and goes on.
	errEnded = errors.New("refused by the gateway that is there")
	// errDied is returned if the old gateway has ended without a word.
	errDied   = errors.New("the gateway that is there has died")
	errSilent = errors.New("no answer from the gateway that is there")
)

// talk is the successor's end of a conversation.
type talk struct {
	*line
	answers chan message  // capacity 1; closed before ended
	ended   chan struct{} // closed when the old gateway has ended the conversation, or has died
	word    string        // why the old gateway has ended the takeover; read only once answers is closed
	late    func(word string)
	ending  *time.Timer // calls late; read only after ended
}

// ask begins a conversation with the gateway at an admin socket, and returns its answer. If there is no gateway,
// [admin.Absent] is true of the error. late is called if the gateway ends the conversation with an error and close does
// not follow within endPatience.
func ask(ctx context.Context, at string, first message, late func(word string)) (*talk, ebpf.Neighbour, error) {
	c := admin.NewClient(at)
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, claimPatience, errSilent)
	defer cancel()
	conn, err := c.Handover(ctx)
	if err != nil {
		return nil, ebpf.Neighbour{}, err
	}
	t := newTalk(conn, late)
	m, err := t.step(ctx, first)
	if err == nil && m.Neighbour == nil {
		err = errOrder
	}
	if err != nil {
		t.close()
		return nil, ebpf.Neighbour{}, err
	}
	return t, *m.Neighbour, nil
}

func newTalk(conn net.Conn, late func(word string)) *talk {
	t := &talk{line: newLine(conn), late: late, answers: make(chan message, 1), ended: make(chan struct{})}
	go t.listen()
	return t
}

// listen reads until the old gateway has ended the conversation.
func (t *talk) listen() {
	defer close(t.ended)
	defer close(t.answers)
	for {
		m, err := t.hear()
		switch {
		case err != nil: // the process may have ended
			return
		case m.Error != "":
			t.word = m.Error
			t.ending = time.AfterFunc(endPatience, func() { t.late(t.word) })
			return
		}
		select {
		case t.answers <- m:
		default: // not an answer to anything
		}
	}
}

// step makes the old gateway do a step. On a timeout it hangs up first and then looks for an answer: either the answer
// has arrived by then, or it never will, and the old gateway learns of that. So both agree whether the step was done.
func (t *talk) step(ctx context.Context, m message) (message, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stepPatience, errSilent)
	defer cancel()
	_ = t.say(m) // listen reports a failure
	var answer message
	var ok bool
	select {
	case answer, ok = <-t.answers:
	case <-ctx.Done():
		t.hangUp()
		answer, ok = <-t.answers
	}
	switch {
	case ok && answer.Step != m.Step:
		return message{}, errOrder
	case ok:
		return answer, nil
	case t.word != "":
		return message{}, fmt.Errorf("%w: %s", errEnded, t.word)
	case ctx.Err() != nil:
		return message{}, context.Cause(ctx)
	}
	return message{}, errDied
}

// hangUp shuts the connection down at this end. What has arrived can still be read.
func (t *talk) hangUp() {
	_ = t.Conn.(*net.UnixConn).CloseRead()
	_ = t.Conn.(*net.UnixConn).CloseWrite()
}

// finish tells the old gateway that new connections are let in, and waits for it to end the conversation.
func (t *talk) finish() {
	_ = t.Conn.(*net.UnixConn).CloseWrite()
	select {
	case <-t.ended:
	case <-time.After(finishPatience):
	}
	t.close()
}

// close ends the conversation, which gives up a takeover that is not complete. It may be called again.
func (t *talk) close() {
	_ = t.Close()
	if <-t.ended; t.ending != nil {
		t.ending.Stop()
	}
}
