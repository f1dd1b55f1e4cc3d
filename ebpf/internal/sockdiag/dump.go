package sockdiag

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// dumpBuffer is more than the kernel puts into a datagram of a dump.
const dumpBuffer = 64 << 10

// Count counts the TCP sockets that are in some states.
func (c *Client) Count(states States) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := make([]byte, dumpBuffer)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		req := newRequest(kindByFamily, unix.NLM_F_DUMP, family, states)
		if err := unix.Sendto(c.fd, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return n, fmt.Errorf("sock_diag: %w", err)
		}
		for more := true; more; {
			size, _, err := unix.Recvfrom(c.fd, buf, 0)
			if err != nil {
				return n, fmt.Errorf("sock_diag: %w", err)
			}
			var found int
			if found, more, err = countSockets(buf[:size]); err != nil {
				return n, err
			}
			n += found
		}
	}
	return n, nil
}

// countSockets counts those in one datagram of a dump, and says whether more
// datagrams follow.
func countSockets(b []byte) (n int, more bool, err error) {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return 0, false, fmt.Errorf("sock_diag: %w", err)
	}
	for i := range msgs {
		switch msgs[i].Header.Type {
		case unix.NLMSG_DONE:
			return n, false, nil
		case unix.NLMSG_ERROR:
			return n, false, fmt.Errorf("sock_diag: error in a dump")
		default:
			n++
		}
	}
	return n, true, nil
}
