package legs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

// patience bounds one answer of the keeper, which does nothing that takes long.
const patience = 10 * time.Second

// Namespace is the gateway's hold of the namespace. Its methods may be called from
// any goroutine, and wait for the keeper unless they say otherwise.
type Namespace struct {
	mu   sync.Mutex // one request at a time
	conn *net.UnixConn

	ns, diag, dump *os.File
}

// Open takes over a connection that [Start] has made.
func Open(conn *os.File) (*Namespace, error) {
	c, err := controlConn(conn)
	if err != nil {
		return nil, err
	}
	n := &Namespace{conn: c}
	_, fds, err := n.ask(message{op: opHello})
	if err == nil && len(fds) != 3 {
		fdpass.CloseFDs(fds)
		err = fmt.Errorf("%w: %d descriptors instead of 3", ErrKeeper, len(fds))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	n.ns = os.NewFile(uintptr(fds[0]), "namespace of the legs")
	n.diag, n.dump = os.NewFile(uintptr(fds[1]), "sock_diag"), os.NewFile(uintptr(fds[2]), "sock_diag")
	return n, nil
}

// File is the namespace; it stays owned by n.
func (n *Namespace) File() *os.File { return n.ns }

// Diag returns two sock_diag sockets of the namespace, one for requests and one
// for dumps; they stay owned by n.
func (n *Namespace) Diag() (request, dump int) { return int(n.diag.Fd()), int(n.dump.Fd()) }

// Device makes a device that has been moved into the namespace the way of all
// packets: whatever arrives is for a socket there, whatever sockets send leaves to
// router, the link address of its other end. settings are sysctls below net. It
// returns the interface index in the namespace.
func (n *Namespace) Device(name string, mtu int, router net.HardwareAddr, settings map[string]string) (int, error) {
	req, err := encode(opDevice, deviceRequest{Name: name, MTU: mtu, Router: router.String(), Settings: settings})
	if err != nil {
		return 0, err
	}
	m, fds, err := n.ask(req)
	fdpass.CloseFDs(fds)
	if err != nil {
		return 0, err
	}
	var a deviceAnswer
	err = m.decode(&a)
	return a.Index, err
}

// Sockets makes at most count legs of a family, 1 to [MaxSockets], and at least
// one: TCP sockets that may be bound to any address, non-blocking, close-on-exec,
// SO_LINGER {1, 0}. They are the caller's.
func (n *Namespace) Sockets(v6 bool, count int) ([]int, error) {
	req, err := encode(opSockets, socketsRequest{V6: v6, Count: count})
	if err != nil {
		return nil, err
	}
	_, fds, err := n.ask(req)
	if err == nil && len(fds) == 0 {
		err = fmt.Errorf("%w: no socket", ErrKeeper)
	}
	return fds, err
}

// Alive reports whether there is a keeper; it does not wait.
func (n *Namespace) Alive() bool {
	raw, err := n.conn.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(fds, 0)
		for errors.Is(err, unix.EINTR) { // even without waiting: the runtime's signals
			_, err = unix.Poll(fds, 0)
		}
		alive = err == nil && fds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) == 0
	})
	return err == nil && alive
}

// ask sends a request and waits for its answer; the descriptors are the caller's.
func (n *Namespace) ask(req message) (message, []int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return message{}, nil, fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	if err := send(n.conn, req); err != nil {
		return message{}, nil, err
	}
	m, fds, err := receive(n.conn)
	if errors.Is(err, fdpass.ErrNoDescriptor) { // of this process; the answer has come
		return message{}, nil, err
	}
	if err != nil {
		_ = n.conn.CloseWrite() // an answer that is late must not be taken for the next one
		return message{}, nil, err
	}
	if m.op != answerDone {
		fdpass.CloseFDs(fds)
		return message{}, nil, fmt.Errorf("%w: %s", ErrKeeper, m.body)
	}
	return m, fds, nil
}

// Close lets the keeper end, and with it the namespace when its sockets have.
func (n *Namespace) Close() error {
	err := n.conn.Close()
	for _, f := range []*os.File{n.ns, n.diag, n.dump} {
		_ = f.Close()
	}
	return err
}
