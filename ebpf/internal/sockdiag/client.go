package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// State is a state of a TCP socket, as in tcp_states.h.
type State uint8

// The states.
const (
	None State = iota
	Established
	_
	SynRecv
	FinWait1
	FinWait2
	TimeWait
	_
	CloseWait
	LastAck
	Listen
	Closing
)

// States is a set of states, one bit each.
type States uint32

// Lingering are the states of a socket that was closed and still has something to deliver: its data or FIN is not
// acknowledged.
const Lingering States = 1<<FinWait1 | 1<<LastAck | 1<<Closing

// Client queries the sockets of one namespace, one query at a time. It is safe for concurrent use.
type Client struct {
	fd int

	mu     sync.Mutex // held during a query
	seq    uint32     // of the last request
	answer [4096]byte
}

// Open returns a client for the namespace of the calling thread.
func Open() (*Client, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("sock_diag netlink: %w", err)
	}
	return &Client{fd: fd}, nil
}

// On returns a client that uses a sock_diag socket, which the caller keeps owning.
func On(fd int) *Client { return &Client{fd: fd} }

// Close closes the socket that Open made.
func (c *Client) Close() error { return unix.Close(c.fd) }

// State returns the state of the socket with these addresses that is bound to device, or to no device if that is 0. It
// returns None if there is no such socket.
func (c *Client) State(local, remote netip.AddrPort, device uint32) (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.find(local, remote, device)
	if err != nil || found == nil {
		return None, err
	}
	return State(found[answerState]), nil
}

// Destroy destroys the socket that [Client.State] would find if meant returns true for its state. It passes the
// socket's cookie to the kernel, so it cannot destroy another socket in its place. It reports whether it destroyed one.
func (c *Client) Destroy(local, remote netip.AddrPort, device uint32, meant func(State) bool) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.find(local, remote, device)
	if err != nil || found == nil || !meant(State(found[answerState])) {
		return false, err
	}
	cookie := binary.NativeEndian.Uint64(found[answerCookie:])
	_, err = c.ask(socketRequest(kindDestroy, local, remote, device, cookie))
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// find returns the kernel's answer about a socket, or nil if there is none. The answer is valid until the next request.
func (c *Client) find(local, remote netip.AddrPort, device uint32) ([]byte, error) {
	found, err := c.ask(socketRequest(kindByFamily, local, remote, device, anyCookie))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err == nil && len(found) < answerLen {
		return nil, fmt.Errorf("sock_diag answer of %d bytes", len(found))
	}
	return found, err
}

// ask sends a request and returns its answer, valid until the next request, or its error.
func (c *Client) ask(req request) ([]byte, error) {
	if err := c.send(req); err != nil {
		return nil, err
	}
	for {
		b, err := c.receive(c.answer[:])
		switch {
		case err != nil:
			return nil, err
		case len(b) < errorLen:
			return nil, fmt.Errorf("sock_diag answer of %d bytes", len(b))
		case binary.NativeEndian.Uint32(b[headerSeq:]) != c.seq: // the answer to an earlier request that failed
			continue
		case binary.NativeEndian.Uint16(b[headerKind:]) == unix.NLMSG_ERROR:
			return b, errorIn(b[headerLen:])
		default:
			return b, nil
		}
	}
}

// send sends a request with a new sequence number, which its answers repeat.
func (c *Client) send(req request) error {
	c.seq++
	binary.NativeEndian.PutUint32(req[headerSeq:], c.seq)
	if err := unix.Sendto(c.fd, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sock_diag: %w", err)
	}
	return nil
}

// receive reads a datagram. It need not wait, because the kernel answers within send and continues a dump within
// receive.
func (c *Client) receive(buf []byte) ([]byte, error) {
	n, _, err := unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	return buf[:n], nil
}

// errorIn returns the error at the beginning of b, the answer without its header, or nil if that is 0.
func errorIn(b []byte) error {
	if len(b) < errorLen-headerLen {
		return fmt.Errorf("sock_diag error of %d bytes", len(b))
	}
	if errno := unix.Errno(-int32(binary.NativeEndian.Uint32(b))); errno != 0 {
		return errno
	}
	return nil
}

// Messages of linux/inet_diag.h. A request is nlmsghdr and inet_diag_req_v2, an answer nlmsghdr and inet_diag_msg.
// Ports and addresses are in network byte order.
const (
	kindByFamily = 20
	kindDestroy  = 21

	headerLen  = 16
	headerKind = 4
	headerSeq  = 8

	requestLen    = 72
	requestFamily = 16
	requestStates = 20
	requestSport  = 24
	requestDport  = 26
	requestSource = 28
	requestDest   = 44
	requestDevice = 60
	requestCookie = 64

	answerState  = 17
	answerCookie = 60
	answerLen    = 68
	errorLen     = 20

	anyCookie = ^uint64(0)
)

type request [requestLen]byte

// newRequest returns a request about TCP sockets of a family.
func newRequest(kind, flags uint16, family uint8, states States) (b request) {
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], requestLen)
	ne.PutUint16(b[headerKind:], kind)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	b[requestFamily], b[requestFamily+1] = family, unix.IPPROTO_TCP
	ne.PutUint32(b[requestStates:], uint32(states))
	return b
}

// socketRequest returns a request about one socket, which is bound to device, or to no device if that is 0. It asks for
// an acknowledgement only if the kind of request has no answer of its own.
func socketRequest(kind uint16, local, remote netip.AddrPort, device uint32, cookie uint64) request {
	family, flags := uint8(unix.AF_INET), uint16(0)
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	if from.Is6() {
		family = unix.AF_INET6
	}
	if kind == kindDestroy {
		flags = unix.NLM_F_ACK
	}
	b := newRequest(kind, flags, family, ^States(0))
	binary.BigEndian.PutUint16(b[requestSport:], local.Port())
	binary.BigEndian.PutUint16(b[requestDport:], remote.Port())
	copy(b[requestSource:], from.AsSlice())
	copy(b[requestDest:], to.AsSlice())
	binary.NativeEndian.PutUint32(b[requestDevice:], device)
	binary.NativeEndian.PutUint64(b[requestCookie:], cookie)
	return b
}

// dumpBuffer is larger than any datagram of a dump.
const dumpBuffer = 64 << 10

// Count returns how many TCP sockets are in one of the states. If it returns an error, it has not seen all of them.
func (c *Client) Count(states States) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := make([]byte, dumpBuffer)
	if err := c.finish(buf); err != nil {
		return 0, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if err := c.send(newRequest(kindByFamily, unix.NLM_F_DUMP, family, states)); err != nil {
			return n, err
		}
		for more := true; more; {
			b, err := c.receive(buf)
			if err != nil {
				return n, err
			}
			var found int
			found, more, err = countSockets(b, c.seq)
			if n += found; err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// finish reads the rest of a dump that ended with an error, because the kernel starts no other one on the socket before
// that.
func (c *Client) finish(buf []byte) error {
	for {
		_, err := c.receive(buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return err
		}
	}
}

// countSockets counts the sockets in one datagram of the dump with a sequence number. more says that further datagrams
// follow.
func countSockets(b []byte, seq uint32) (n int, more bool, err error) {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return 0, false, fmt.Errorf("sock_diag: %w", err)
	}
	for i := range msgs {
		switch m := &msgs[i]; {
		case m.Header.Seq != seq: // of an earlier dump that failed
		case m.Header.Type == unix.NLMSG_DONE, m.Header.Type == unix.NLMSG_ERROR:
			if err := errorIn(m.Data); err != nil {
				return n, false, fmt.Errorf("sock_diag dump: %w", err)
			}
			return n, false, nil
		default:
			n++
		}
	}
	return n, true, nil
}
