package legs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

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
