package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Layout of a SOCK_DESTROY request: nlmsghdr and inet_diag_req_v2 of
// linux/inet_diag.h. Ports and addresses are in network byte order.
const (
	sockDestroy    = 21
	destroyLen     = 72
	diagFamily     = 16
	diagStates     = 20
	diagSport      = 24
	diagDport      = 26
	diagSource     = 28
	diagDest       = 44
	diagInterface  = 60
	diagCookie     = 64
	ackErrno       = 16
	ackMinimum     = 20
	anyCookie      = ^uint64(0)
	allSocketKinds = ^uint32(0)
)

// DestroySocket destroys a stale gateway socket (mostly TIME_WAIT) of a flow:
// bound to A, with local address t.Remote and remote address t.Local. A socket in
// TIME_WAIT would swallow the next SYN given to the listener, and refuse the next
// dial from this tuple. It reports whether there was one.
func (d *Datapath) DestroySocket(t Tuple) (bool, error) {
	k, err := t.key()
	if err != nil {
		return false, err
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	req := destroyRequest(k, uint32(d.appIndex))
	if err := unix.Sendto(d.diag, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, fmt.Errorf("sock_diag: %w", err)
	}
	var ack [256]byte
	n, _, err := unix.Recvfrom(d.diag, ack[:], 0)
	if err != nil {
		return false, fmt.Errorf("sock_diag: %w", err)
	}
	if n < ackMinimum {
		return false, fmt.Errorf("sock_diag: answer of %d bytes", n)
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(ack[ackErrno:])))
	switch {
	case errno == 0:
		return true, nil
	case errors.Is(errno, unix.ENOENT):
		return false, nil
	default:
		return false, fmt.Errorf("destroy socket of %v: %w", t, errno)
	}
}

// destroyRequest builds the message; the gateway socket's addresses are the
// reverse of the flow's.
func destroyRequest(k smcgwFlowKey, ifindex uint32) (b [destroyLen]byte) {
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], destroyLen)
	ne.PutUint16(b[4:], sockDestroy)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b[diagFamily], b[diagFamily+1] = unix.AF_INET, unix.IPPROTO_TCP
	if k.Family == family6 {
		b[diagFamily] = unix.AF_INET6
	}
	ne.PutUint32(b[diagStates:], allSocketKinds)
	ne.PutUint16(b[diagSport:], k.Rport)
	ne.PutUint16(b[diagDport:], k.Lport)
	copy(b[diagSource:], k.Raddr[:])
	copy(b[diagDest:], k.Laddr[:])
	ne.PutUint32(b[diagInterface:], ifindex)
	ne.PutUint64(b[diagCookie:], anyCookie)
	return b
}
