package legs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// Requests of the gateway. Each is one packet and is answered by one packet.
const (
	opHello   = 'h' // answer: descriptors of the namespace and of two sock_diag sockets
	opDevice  = 'd' // a deviceRequest; the answer has a deviceAnswer
	opSockets = 's' // a socketsRequest; the answer has that many descriptors, or fewer
	opSpare   = 'k' // answer: the descriptor of a connection to a spare keeper
)

// Answers of the keeper.
const (
	answerDone   = 'y'
	answerFailed = 'n' // with a failure
)

const (
	// MaxSockets is how many sockets one request may ask for.
	MaxSockets = fdpass.MaxFiles
	// maxPacket bounds the text of a packet.
	maxPacket = 4096
)

// ErrKeeper means that the keeper is gone, or that the other end of the connection is not a keeper.
var ErrKeeper = errors.New("keeper of the legs' namespace")

// deviceRequest asks the keeper to send all packets of the namespace through a device that has been moved there.
type deviceRequest struct {
	Name     string            `json:"name"`
	MTU      int               `json:"mtu"`
	Router   string            `json:"router"`   // link address of the other end
	Settings map[string]string `json:"settings"` // sysctls below net
}

type deviceAnswer struct {
	Index int `json:"ifindex"`
}

type socketsRequest struct {
	V6    bool `json:"v6"`
	Count int  `json:"count"`
}

// failure is an error of the keeper as the gateway sees it. errors.Is finds the kernel error that caused it.
type failure struct {
	Text  string        `json:"text"`
	Errno syscall.Errno `json:"errno"` // 0 if the kernel did not cause it
}

func (f failure) Error() string { return f.Text }

func (f failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// failureOf decodes the error of an answer.
func failureOf(m message) error {
	var f failure
	if err := m.decode(&f); err != nil {
		return err
	}
	return f
}

// message is one packet.
type message struct {
	op    byte
	body  []byte
	files []*fdpass.File
}

// encode returns a message with v as its body.
func encode(op byte, v any) (message, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return message{}, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return message{op: op, body: body}, nil
}

// decode decodes the body of a message into v.
func (m message) decode(v any) error {
	if err := json.Unmarshal(m.body, v); err != nil {
		return fmt.Errorf("request %q: %w", m.op, err)
	}
	return nil
}

// close closes the files of a message.
func (m message) close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// send writes a packet. The files remain owned by the caller.
func send(c *net.UnixConn, m message) error {
	if err := fdpass.Send(c, append([]byte{m.op}, m.body...), m.files...); err != nil {
		return fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return nil
}

// receive waits for a packet and its descriptors, or returns io.EOF when the other end has been closed. If some
// descriptors of a packet are missing, it returns none of them ([fdpass.ErrNoDescriptor]).
func receive(c *net.UnixConn) (message, []int, error) {
	body := make([]byte, maxPacket)
	n, fds, cut, err := fdpass.Receive(c, body)
	if err == nil {
		err = cut
	}
	if err != nil {
		fdpass.CloseFDs(fds)
		return message{}, nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return message{op: body[0], body: body[1:n]}, fds, nil
}

// controlConn returns a connection for a socket, and closes its file.
func controlConn(f *os.File) (*net.UnixConn, error) {
	c, err := fdpass.Conn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return c, nil
}

// Congestion is the congestion control of legs. Every kernel has it, and nothing is lost between two sockets of one
// host.
const Congestion = "reno"

// Farthest is the largest TTL, with which a packet from the adjacent host arrives if it was sent as routing daemons do
// (RFC 5082).
const Farthest = 255

// Family returns AF_INET6 or AF_INET.
func Family(v6 bool) int {
	if v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// SetHops sets the TTL of the packets that a socket sends.
func SetHops(fd int, v6 bool, ttl int) error {
	level, option := unix.SOL_IP, unix.IP_TTL
	if v6 {
		level, option = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS
	}
	if err := unix.SetsockoptInt(fd, level, option, ttl); err != nil {
		return fmt.Errorf("ttl: %w", err)
	}
	return nil
}

// socket returns a leg, or a listener for legs: a TCP socket (not MPTCP), non-blocking and close-on-exec, that may have
// any address, and whose close resets the connection until SO_LINGER is changed.
func socket(v6 bool) (int, error) {
	fd, err := unix.Socket(Family(v6), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("gateway socket: %w", err)
	}
	if err := prepare(fd, v6); err != nil {
		return -1, errors.Join(fmt.Errorf("gateway socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// prepare sets what every gateway socket needs before bind. Sockets that a listener accepts inherit all of it.
func prepare(fd int, v6 bool) error {
	set := func(level, opt int) error { return unix.SetsockoptInt(fd, level, opt, 1) }
	var errs []error
	if v6 {
		errs = append(errs, set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT), set(unix.SOL_IPV6, unix.IPV6_V6ONLY))
	} else {
		errs = append(errs, set(unix.SOL_IP, unix.IP_TRANSPARENT))
	}
	errs = append(errs,
		set(unix.SOL_SOCKET, unix.SO_REUSEADDR),
		set(unix.SOL_SOCKET, unix.SO_OOBINLINE), // urgent bytes stay in the stream
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY), // the application's own Nagle algorithm has already decided
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, Congestion),
	)
	return errors.Join(errs...)
}

const (
	// patience bounds the wait for one answer of the keeper, which does nothing slow.
	patience = 10 * time.Second
	// soon is the time after which an answer is late.
	soon = patience / 10
)

// client is the gateway's end of the connection to one keeper.
type client struct {
	conn     *net.UnixConn
	patience time.Duration // for one answer
	opened   time.Time

	mu    sync.Mutex   // one request at a time; guards owed
	owed  int          // answers outstanding: every request gets one, in order, even one whose wait timed out
	since atomic.Int64 // when the last request was sent, after opened; 0 if none is outstanding
}

// newClient returns a client for a connection, and closes its file.
func newClient(conn *os.File) (*client, error) {
	c, err := controlConn(conn)
	if err != nil {
		return nil, err
	}
	return &client{conn: c, patience: patience, opened: time.Now()}, nil
}

// close ends the keeper and makes whatever waits for it fail.
func (k *client) close() { _ = k.conn.Close() }

// gone reports whether the keeper has ended, without waiting.
func (k *client) gone() bool { return k.poll()&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 }

// answers reports whether the keeper is alive and not late.
func (k *client) answers() bool {
	events := k.poll()
	if events&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 {
		return false
	}
	if !k.late() {
		return true
	}
	if events&unix.POLLIN != 0 && k.mu.TryLock() { // otherwise a request in progress reads the answer
		defer k.mu.Unlock()
		_ = k.skip()
	}
	return !k.late()
}

// late reports whether the keeper is late with an answer.
func (k *client) late() bool {
	since := time.Duration(k.since.Load())
	return since != 0 && time.Since(k.opened)-since > soon
}

// poll returns the pending events of the connection.
func (k *client) poll() (events int16) {
	raw, err := k.conn.SyscallConn()
	if err != nil {
		return unix.POLLERR
	}
	fds := []unix.PollFd{{Events: unix.POLLIN | unix.POLLRDHUP}}
	var polled error
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, polled = unix.Poll(fds, 0)
		for errors.Is(polled, unix.EINTR) { // possible even without waiting, by the runtime's signals
			_, polled = unix.Poll(fds, 0)
		}
	})
	if err != nil || polled != nil {
		return unix.POLLERR
	}
	return fds[0].Revents
}

// ask sends a request and waits for its answer; the caller owns the descriptors. If an earlier request timed out, ask
// first waits for its answer.
func (k *client) ask(req message) (message, []int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.skip(); err != nil {
		return message{}, nil, err
	}
	if err := send(k.conn, req); err != nil {
		return message{}, nil, err
	}
	k.owed++
	k.since.Store(int64(time.Since(k.opened)))
	m, fds, err := k.hear()
	if err != nil {
		return message{}, nil, err
	}
	if m.op != answerDone {
		fdpass.CloseFDs(fds)
		return message{}, nil, fmt.Errorf("%w: %w", ErrKeeper, failureOf(m))
	}
	return m, fds, nil
}

// skip reads the answers to requests that timed out, and restarts the deadline for the next one. The caller holds mu.
func (k *client) skip() error {
	if err := k.conn.SetDeadline(time.Now().Add(k.patience)); err != nil {
		return fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	for k.owed > 0 {
		_, fds, err := k.hear()
		fdpass.CloseFDs(fds)
		if err != nil && !errors.Is(err, fdpass.ErrNoDescriptor) && !errors.Is(err, fdpass.ErrTooLong) { // those have come
			return err
		}
	}
	return nil
}

// hear waits for the next answer. The caller holds mu.
func (k *client) hear() (message, []int, error) {
	m, fds, err := receive(k.conn)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		if k.owed--; k.owed == 0 {
			k.since.Store(0)
		}
	}
	return m, fds, err
}
