package legs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// The requests of the gateway: one packet each, answered by one.
const (
	opHello   = 'h' // answer: descriptors of the namespace and of two sock_diag sockets
	opDevice  = 'd' // a deviceRequest; answer: a deviceAnswer
	opSockets = 's' // a socketsRequest; answer: so many descriptors
)

// The answers.
const (
	answerDone   = 'y'
	answerFailed = 'n' // with the error's text
)

const (
	// MaxSockets is how many sockets one request may ask for; the kernel passes at
	// most 253 descriptors with a packet.
	MaxSockets = 128
	// maxPacket bounds a packet's text.
	maxPacket = 4096
)

// ErrKeeper means that the keeper is gone, or that the other end of the
// connection is none.
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

// message is one packet.
type message struct {
	op    byte
	body  []byte
	files []*os.File
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
	fds := make([]int, len(m.files))
	for i, f := range m.files {
		raw, err := f.SyscallConn() // not Fd: it would make the file blocking
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return fmt.Errorf("%w: file to pass: %w", ErrKeeper, err)
		}
	}
	return sendFDs(c, m, fds)
}

// sendFDs writes a packet with bare descriptors.
func sendFDs(c *net.UnixConn, m message, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(append([]byte{m.op}, m.body...), oob, nil); err != nil {
		return fmt.Errorf("%w: send: %w", ErrKeeper, err)
	}
	return nil
}

// receive waits for a packet and its descriptors; io.EOF when the other end has
// closed.
func receive(c *net.UnixConn) (message, []int, error) {
	body := make([]byte, maxPacket)
	oob := make([]byte, unix.CmsgSpace(4*MaxSockets))
	n, oobn, flags, _, err := c.ReadMsgUnix(body, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return message{}, nil, fmt.Errorf("%w: receive: %w", ErrKeeper, err)
	}
	fds, err := rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: a packet that is too long", ErrKeeper)
	}
	if err != nil {
		closeFDs(fds)
		return message{}, nil, err
	}
	return message{op: body[0], body: body[1:n]}, fds, nil
}

// rights returns the descriptors of control messages; they are close-on-exec.
func rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control message: %w", ErrKeeper, err)
	}
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range got {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// fileConn makes a connection of a socket, whose file it closes.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: not a unix socket", ErrKeeper), c.Close())
	}
	return u, nil
}
