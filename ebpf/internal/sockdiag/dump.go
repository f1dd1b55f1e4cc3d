package sockdiag

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

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
