package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Process is a program at the other end of a connection, which belongs to it.
// Its methods may be called from any goroutine.
type Process struct {
	Name string

	conn net.Conn
	done chan struct{}

	mu      sync.Mutex // guards everything below
	text    []byte
	changed chan struct{} // closed and replaced at every change
	exit    Exit
	err     error
}

// outputLimit bounds how much of a program's output is kept; the beginning is dropped.
const outputLimit = 1 << 20

// Start asks the server to run a program. It keeps the connection until the
// program has ended or is killed.
func Start(conn net.Conn, c Command) (*Process, error) {
	p := &Process{Name: strings.Join(c.Args, " "), conn: conn, done: make(chan struct{}), changed: make(chan struct{})}
	if err := (&frameWriter{w: conn}).writeJSON(kindCommand, c); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.Name, err), conn.Close())
	}
	go p.follow()
	return p, nil
}

func (p *Process) follow() {
	defer close(p.done)
	defer func() { _ = p.conn.Close() }()
	for {
		kind, b, err := readFrame(p.conn)
		if p.take(kind, b, err) {
			return
		}
	}
}

// take records a frame and tells whether it was the last.
func (p *Process) take(kind byte, b []byte, err error) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.err, last = err, true
	case kind == kindOutput:
		p.text = append(p.text, b...)
		if over := len(p.text) - outputLimit; over > 0 {
			p.text = append([]byte(nil), p.text[over+outputLimit/2:]...)
		}
	case kind == kindExit:
		p.err, last = json.Unmarshal(b, &p.exit), true
	default:
		p.err, last = fmt.Errorf("frame of kind %q", kind), true
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return last
}

// Output returns what the program has printed so far, on both streams.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.text)
}

// Wait waits for the end of the program. For an exit status other than 0 it returns an error with the output.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("%s: %w; it printed:\n%s", p.Name, context.Cause(ctx), p.Output())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return fmt.Errorf("%s: %w; it printed:\n%s", p.Name, p.err, p.text)
	}
	if p.exit != (Exit{}) {
		return fmt.Errorf("%s: %w; it printed:\n%s", p.Name, &ExitError{p.exit}, p.text)
	}
	return nil
}

// ExitError is the end of a program with an exit status other than 0.
type ExitError struct{ Exit }

// Error returns the text of the Exit.
func (e *ExitError) Error() string { return e.String() }

// WaitOutput waits until the program has printed a text.
func (p *Process) WaitOutput(ctx context.Context, text string) error {
	for {
		p.mu.Lock()
		found, changed, printed := strings.Contains(string(p.text), text), p.changed, string(p.text)
		p.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-changed:
			continue
		case <-p.done:
			if strings.Contains(p.Output(), text) {
				return nil
			}
			return fmt.Errorf("%q from %s: %w; it printed:\n%s", text, p.Name, io.ErrUnexpectedEOF, p.Output())
		case <-ctx.Done():
			return fmt.Errorf("%q from %s: %w; it printed:\n%s", text, p.Name, context.Cause(ctx), printed)
		}
	}
}

// Kill kills the program with everything that it has started, and returns once the connection has ended.
func (p *Process) Kill() {
	_ = p.conn.Close()
	<-p.done
}
