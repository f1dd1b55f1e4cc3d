package legs

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// The requests of the gateway: one packet each, answered by one.
const (
	opHello   = 'h' // answer: descriptors of the namespace and of two sock_diag sockets
	opDevice  = 'd' // a deviceRequest; answer: a deviceAnswer
	opSockets = 's' // a socketsRequest; answer: so many descriptors
	opSpare   = 'k' // answer: the descriptor of a connection to a spare keeper
)

// The answers.
const (
	answerDone   = 'y'
	answerFailed = 'n' // a failure
)

const (
	// MaxSockets is how many sockets one request may ask for.
	MaxSockets = fdpass.MaxFiles
	// maxPacket bounds a packet's text.
	maxPacket = 4096
)

// ErrKeeper means that the keeper is gone, or that the other end of the
// connection is no keeper.
var ErrKeeper = errors.New("keeper of the legs' namespace")

// deviceRequest asks for the device, which has been moved into the namespace, to
// be the way of all packets there.
type deviceRequest struct {
	Name     string            `json:"name"`
	MTU      int               `json:"mtu"`
	Router   string            `json:"router"`   // the link address of the other end
	Settings map[string]string `json:"settings"` // sysctls below net
}

type deviceAnswer struct {
	Index int `json:"ifindex"`
}

type socketsRequest struct {
	V6    bool `json:"v6"`
	Count int  `json:"count"`
}

// failure is an error of the keeper, as the gateway sees it: errors.Is finds the error of
// the kernel that was the cause.
type failure struct {
	Text  string        `json:"text"`
	Errno syscall.Errno `json:"errno"` // 0: the cause is not in the kernel
}

func (f failure) Error() string { return f.Text }

func (f failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// failureOf reads the error of an answer.
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

// encode puts a value into a message.
func encode(op byte, v any) (message, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return message{}, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return message{op: op, body: body}, nil
}

// decode reads the value of a message.
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

// send writes a packet; its files stay the caller's.
func send(c *net.UnixConn, m message) error {
	if err := fdpass.Send(c, append([]byte{m.op}, m.body...), m.files...); err != nil {
		return fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return nil
}

// receive waits for a packet and its descriptors; io.EOF when the other end has
// closed. A packet without all of its descriptors has none ([fdpass.ErrNoDescriptor]).
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

// controlConn makes a connection of a socket, whose file it closes.
func controlConn(f *os.File) (*net.UnixConn, error) {
	c, err := fdpass.Conn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	return c, nil
}
