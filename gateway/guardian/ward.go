package guardian

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// errNoGuardian is returned when no guardian answers.
var errNoGuardian = errors.New("no guardian answers")

// Bounds for talking to a guardian.
const (
	guardianAnswer   = 2 * time.Second // for one answer
	guardianPatience = 5 * time.Second // for a request, including replacements
)

// Ward is the daemon's end of the supervision. It replaces a guardian that dies. It
// implements gateway.Supervisor.
type Ward struct {
	o        Options
	requests chan wardRequest
	stop     chan struct{}
	once     sync.Once
	done     chan struct{}

	// The fields below belong to the run goroutine.
	conn    *net.UnixConn // nil while there is no guardian
	packets chan packet
	files   []*fdpass.File // protected files, the heartbeat first
	since   time.Time      // when conn's guardian was started
	backoff time.Duration
	level   string // log level of guardians; empty: their own
	end     func() // kills conn's guardian; does nothing for the first, the parent of this process
}

// wardRequest asks the run goroutine to change what is protected.
type wardRequest struct {
	files []*fdpass.File // nil: release
	note  string         // protects nothing new: pass this to the service manager
	level string         // protects nothing new: set the guardians' log level
	reply chan error
}

func newWard(o Options, conn *net.UnixConn) *Ward {
	w := &Ward{
		o: o, requests: make(chan wardRequest), stop: make(chan struct{}), done: make(chan struct{}),
		backoff: o.Times.Backoff,
	}
	w.attach(conn, func() {})
	go w.run()
	return w
}

// Protect implements gateway.Supervisor.
func (w *Ward) Protect(heartbeat *fdpass.File, hold []*fdpass.File) error {
	return w.request(append([]*fdpass.File{heartbeat}, hold...))
}

// Release implements gateway.Supervisor.
func (w *Ward) Release() error { return w.request(nil) }

// Notify makes the guardian tell the service manager, and waits until it has, at most for
// guardianAnswer.
func (w *Ward) Notify(state string) error {
	if len(state) > maxNotify {
		return fmt.Errorf("guardian: %d bytes for the service manager, not up to %d", len(state), maxNotify)
	}
	return w.ask(wardRequest{note: state})
}

// SetLevel sets the log level of the guardian and of those that replace it.
func (w *Ward) SetLevel(level slog.Level) error {
	return w.ask(wardRequest{level: level.String()})
}

// Close ends the supervision without notice to the guardian, which takes it as the beginning
// of the end of this process.
func (w *Ward) Close() {
	w.once.Do(func() { close(w.stop) })
	<-w.done
}

func (w *Ward) request(files []*fdpass.File) error {
	return w.ask(wardRequest{files: files})
}

func (w *Ward) ask(r wardRequest) error {
	r.reply = make(chan error, 1)
	select {
	case w.requests <- r:
		return <-r.reply
	case <-w.done:
		return fmt.Errorf("guardian: %w", net.ErrClosed)
	}
}

// run owns the connection to the guardian.
func (w *Ward) run() {
	defer close(w.done)
	defer w.detach()
	for {
		select {
		case <-w.stop:
			return
		case r := <-w.requests:
			r.reply <- w.serve(r)
		case _, ok := <-w.packets:
			if !ok {
				w.detach()
			}
		case <-w.retry():
			w.replace()
		}
	}
}

func (w *Ward) serve(r wardRequest) error {
	switch {
	case r.note != "":
		if err := w.say(msgNotify, r.note); err != nil {
			return err
		}
		return w.await(msgTold)
	case r.level != "":
		w.level = r.level
		return w.say(msgLevel, r.level)
	default:
		w.files = r.files
		return w.ensure()
	}
}

// say sends a text message.
func (w *Ward) say(kind byte, text string) error {
	if w.conn == nil {
		return errNoGuardian
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(guardianAnswer)); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return sendPacket(w.conn, packet{kind: kind, text: text})
}

// retry fires when it is time to start a guardian, never while there is one.
func (w *Ward) retry() <-chan time.Time {
	if w.conn != nil {
		return nil
	}
	return time.After(time.Until(w.since.Add(w.backoff)))
}

// ensure hands what is protected to a guardian, starting a new one if needed.
func (w *Ward) ensure() error {
	for deadline := time.Now().Add(guardianPatience); ; {
		if w.conn != nil && w.tell() == nil {
			return nil
		}
		select {
		case <-w.stop:
			return fmt.Errorf("guardian: %w", net.ErrClosed)
		case <-w.retry():
		}
		if time.Now().After(deadline) {
			return errNoGuardian
		}
		w.replace()
	}
}

// replace starts a guardian in place of the dead one.
func (w *Ward) replace() {
	if lived := time.Since(w.since); lived < 100*w.o.Times.Backoff {
		w.backoff = min(2*w.backoff, 100*w.o.Times.Backoff)
	} else {
		w.backoff = w.o.Times.Backoff
	}
	w.since = time.Now()
	conn, end, err := w.startGuardian()
	if err != nil {
		w.o.Logger.Error("guardian not replaced", "error", err, "retry", w.backoff)
		return
	}
	w.o.Logger.Warn("guardian gone, replaced")
	w.attach(conn, end)
	if w.level != "" {
		if err := w.say(msgLevel, w.level); err != nil {
			w.o.Logger.Error("new guardian does not listen", "error", err)
		}
	}
	if w.files != nil {
		if err := w.tell(); err != nil {
			w.o.Logger.Error("new guardian does not answer", "error", err)
		}
	}
}

// startGuardian starts a guardian for this process; end kills it.
func (w *Ward) startGuardian() (conn *net.UnixConn, end func(), err error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, nil, err
	}
	defer far.Close()
	own, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		_ = near.Close()
		return nil, nil, fmt.Errorf("open own pidfd: %w", err)
	}
	self := os.NewFile(uintptr(own), "pidfd")
	defer self.Close()
	o, err := w.o.keep()
	if err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	cmd, pidfd, err := startSelf(o, roleGuardian, far, self)
	if err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	_ = unix.Close(pidfd)
	go func() { _ = cmd.Wait() }() // returns when the guardian ends, which conn reports
	return near, func() { _ = cmd.Process.Kill() }, nil
}

// attach makes conn the guardian's connection.
func (w *Ward) attach(conn *net.UnixConn, end func()) {
	w.conn, w.end, w.packets, w.since = conn, end, make(chan packet, 1), time.Now()
	go receiveAcks(conn, w.packets)
}

// detach closes the connection and waits for the receiver, which closes the channel.
func (w *Ward) detach() {
	if w.conn == nil {
		return
	}
	_ = w.conn.Close()
	for range w.packets { // until the receiver ends
	}
	w.conn, w.packets = nil, nil
}

// tell sends what is protected, or that nothing is, and waits for the answer. A guardian that
// does not answer is given up: it is killed, or drops what it holds when it resumes.
func (w *Ward) tell() error {
	err := w.send()
	if err == nil {
		err = w.await(msgAck)
	}
	if err != nil {
		w.end()
		w.detach()
	}
	return err
}

func (w *Ward) send() error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(guardianAnswer)); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	if w.files == nil {
		return sendPacket(w.conn, packet{kind: msgRelease})
	}
	for chunk := range slices.Chunk(w.files[1:], fdpass.MaxFiles) {
		if err := sendPacket(w.conn, packet{kind: msgHold, files: chunk}); err != nil {
			return err
		}
	}
	return sendPacket(w.conn, packet{kind: msgProtect, files: w.files[:1]})
}

// await waits for an answer of this kind, skipping late answers to earlier requests.
func (w *Ward) await(kind byte) error {
	late := time.After(guardianAnswer)
	for {
		select {
		case p, ok := <-w.packets:
			if !ok {
				return errNoGuardian
			}
			if p.kind == kind {
				return nil
			}
		case <-late:
			return errNoGuardian
		}
	}
}

// receiveAcks passes the guardian's packets on, and closes the channel when the connection
// ends.
func receiveAcks(c *net.UnixConn, packets chan<- packet) {
	defer close(packets)
	for {
		p, err := receivePacket(c)
		if err != nil {
			return
		}
		p.close() // a guardian sends no files
		packets <- p
	}
}
