package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
)

const (
	// claimPatience bounds the first answer.
	claimPatience = 10 * time.Second
	// stepPatience bounds a step; the longest moves connections to another carrier.
	stepPatience = 30 * time.Second
	// endPatience is for a gateway that is refused its next step to end by itself.
	endPatience = 15 * time.Second
	// finishPatience is for the old gateway to name this process to the service manager.
	finishPatience = 5 * time.Second
)

var (
	// errEnded is returned for a takeover that the old gateway has ended, which goes on.
	errEnded = errors.New("refused by the gateway that is there")
	// errDied is returned when the old gateway has ended without a word.
	errDied   = errors.New("the gateway that is there has died")
	errSilent = errors.New("no answer from the gateway that is there")
)

// talk is the successor's end of a conversation.
type talk struct {
	*line
	answers chan message  // has room for one; closed as ended
	ended   chan struct{} // closed when the old gateway has ended the takeover, or itself
	word    string        // of the old gateway, why it has ended the takeover; read after ended
	late    func(word string)
	ending  *time.Timer // of late; read after ended
}

// ask begins a conversation with the gateway at an admin socket, and returns what it says of itself.
// The error is [admin.Absent] if there is none. late is called when it has ended the conversation with
// a word, and close does not follow.
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
		case err != nil: // its end may be that of a process
			return
		case m.Error != "":
			t.word = m.Error
			t.ending = time.AfterFunc(endPatience, func() { t.late(t.word) })
			return
		}
		select {
		case t.answers <- m:
		default: // what was not asked
		}
	}
}

// step has the old gateway do a step. One that is not answered in time is not done: the answer
// has arrived when the conversation is hung up, or it never does, and the old gateway learns that.
func (t *talk) step(ctx context.Context, m message) (message, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stepPatience, errSilent)
	defer cancel()
	_ = t.say(m) // listen hears why not
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

// hangUp ends the conversation at this end; what has arrived is still heard.
func (t *talk) hangUp() {
	_ = t.Conn.(*net.UnixConn).CloseRead()
	_ = t.Conn.(*net.UnixConn).CloseWrite()
}

// finish says that new connections are let in, and waits until the old gateway has nothing more
// to say.
func (t *talk) finish() {
	_ = t.Conn.(*net.UnixConn).CloseWrite()
	select {
	case <-t.ended:
	case <-time.After(finishPatience):
	}
	t.close()
}

// close ends the conversation: a takeover that has not come to its end is given up. It is
// idempotent.
func (t *talk) close() {
	_ = t.Close()
	if <-t.ended; t.ending != nil {
		t.ending.Stop()
	}
}
