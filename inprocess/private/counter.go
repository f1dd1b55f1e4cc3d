package private

import (
	"fmt"
	"net"
	"time"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/internal/fdpass"
)

// answerWait bounds the wait for an answer of the broker.
const answerWait = 2 * time.Second

// Counter asks a broker for the totals of one run. It is a client of the broker until it is closed. It is not safe for
// concurrent use.
type Counter struct {
	conn *net.UnixConn
	run  uint64
}

// Totals are the totals of a run.
type Totals struct {
	Processes uint64                   // running now with the library
	Promoted  uint64                   // connections
	Bytes     uint64                   // that went through their rings, in both directions
	Native    map[inprocess.Why]uint64 // ends, by reason
	Off       bool                     // nothing is promoted now, and programs do not ask
}

// DeniedError reports that the broker does not accept the client.
type DeniedError struct{ Why inprocess.Why }

// Error returns the reason.
func (e *DeniedError) Error() string { return "broker: " + e.Why.Meaning() }

// AnswerError reports a record that does not answer the question.
type AnswerError struct{ Record inprocess.Record }

// Error returns the record.
func (e *AnswerError) Error() string { return fmt.Sprintf("broker: answered %+v", e.Record) }

// Dial connects a counter to a broker that is already running.
func Dial(at string, run uint64) (*Counter, error) {
	c, err := dial(at)
	if err != nil {
		return nil, err
	}
	return newCounter(c, run)
}

// newCounter makes a counter of a connection. An answer shows that the broker has accepted it.
func newCounter(c *net.UnixConn, run uint64) (*Counter, error) {
	counter := &Counter{c, run}
	if _, err := counter.ask(inprocess.WhyNone); err != nil {
		_ = c.Close()
		return nil, err
	}
	return counter, nil
}

// Close disconnects from the broker.
func (c *Counter) Close() error { return c.conn.Close() }

func (c *Counter) ask(why inprocess.Why) (r inprocess.Record, err error) {
	if err = c.conn.SetDeadline(time.Now().Add(answerWait)); err != nil {
		return r, fmt.Errorf("broker: %w", err)
	}
	q := inprocess.Record{What: inprocess.Count, ID: c.run, Why: why}
	if err = fdpass.Send(c.conn, q.Append(nil)); err != nil {
		return r, fmt.Errorf("broker: %w", err)
	}
	b := make([]byte, inprocess.RecordSize+1)
	n, fds, _, err := fdpass.Receive(c.conn, b)
	fdpass.CloseFDs(fds)
	if err == nil {
		r, err = inprocess.ParseRecord(b[:n])
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("broker: %w", err)
	case r.What == inprocess.Deny:
		return r, &DeniedError{r.Why}
	case r.What != inprocess.Count || r.Why != why:
		return r, &AnswerError{r}
	}
	return r, nil
}

// Totals asks for the current totals.
func (c *Counter) Totals() (t Totals, err error) {
	r, err := c.ask(inprocess.WhyNone)
	if err != nil {
		return t, err
	}
	t = Totals{Processes: uint64(r.Tag), Promoted: r.A, Bytes: r.B, Native: map[inprocess.Why]uint64{}, Off: r.Side == 1}
	for _, why := range inprocess.Whys() {
		if r, err = c.ask(why); err != nil {
			return t, err
		}
		if r.A > 0 {
			t.Native[why] = r.A
		}
	}
	return t, nil
}
