package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Messages of linux/inet_diag.h: requests are nlmsghdr and inet_diag_req_v2, the
// answer is nlmsghdr and inet_diag_msg. Ports and addresses are in network byte
// order.
const (
	diagByFamily = 20
	diagDestroy  = 21

	diagRequestLen = 72
	diagFamily     = 16
	diagStates     = 20
	diagSport      = 24
	diagDport      = 26
	diagSource     = 28
	diagDest       = 44
	diagInterface  = 60
	diagCookie     = 64

	answerState     = 17
	answerInterface = 56
	answerCookie    = 60
	answerLen       = 68
	errorCode       = 16
	errorLen        = 20

	tcpTimeWait = 6
	tcpListen   = 10

	anyCookie = ^uint64(0)
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
	cookie, err := d.findSocketLocked(k)
	if err == nil {
		_, err = d.diagnoseLocked(diagRequest(k, diagDestroy, uint32(d.appIndex), cookie))
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("destroy socket of %v: %w", t, err)
	}
	return true, nil
}

// ForgetTimeWait ends the TIME_WAIT of the local application's socket of a flow
// that has ended on both sides. It guards against nothing, since its peer was a
// gateway socket on this host, and does harm: the client's next connection on
// the tuple would be native, and the kernel would compare its timestamps with
// those of the gateway socket. It reports whether there was one.
func (d *Datapath) ForgetTimeWait(t Tuple) (bool, error) {
	k, err := Tuple{Local: t.Remote, Remote: t.Local}.key() // requests are about the reverse
	if err != nil {
		return false, err
	}
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.diagnoseLocked(diagRequest(k, diagByFamily, 0, anyCookie))
	switch {
	case err == nil && (len(b) < answerLen || b[answerState] != tcpTimeWait):
		return false, nil
	case err == nil:
		_, err = d.diagnoseLocked(diagRequest(k, diagDestroy, 0, binary.NativeEndian.Uint64(b[answerCookie:])))
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("time-wait socket of %v: %w", t, err)
	}
	return true, nil
}

// findSocketLocked returns the cookie of the gateway socket. The kernel's lookup
// falls back to listeners, of whatever device: an application that happens to
// listen on the port must not be destroyed in its place.
func (d *Datapath) findSocketLocked(k smcgwFlowKey) (uint64, error) {
	b, err := d.diagnoseLocked(diagRequest(k, diagByFamily, uint32(d.appIndex), anyCookie))
	if err != nil {
		return 0, err
	}
	if len(b) < answerLen {
		return 0, fmt.Errorf("sock_diag answer of %d bytes", len(b))
	}
	ne := binary.NativeEndian
	if b[answerState] == tcpListen || ne.Uint32(b[answerInterface:]) != uint32(d.appIndex) {
		return 0, unix.ENOENT
	}
	return ne.Uint64(b[answerCookie:]), nil
}

// diagnoseLocked sends a request and returns the answer, or its error.
func (d *Datapath) diagnoseLocked(req [diagRequestLen]byte) ([]byte, error) {
	if err := unix.Sendto(d.diag, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(d.diag, buf, 0)
	if err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	ne := binary.NativeEndian
	if n < errorLen {
		return nil, fmt.Errorf("sock_diag answer of %d bytes", n)
	}
	if ne.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return buf[:n], nil
	}
	if errno := unix.Errno(-int32(ne.Uint32(buf[errorCode:]))); errno != 0 {
		return nil, errno
	}
	return buf[:n], nil
}

// diagRequest builds a request about the socket whose addresses are the reverse
// of the flow's. A request that has an answer asks for no acknowledgement
// beside it.
func diagRequest(k smcgwFlowKey, kind uint16, ifindex uint32, cookie uint64) (b [diagRequestLen]byte) {
	ne := binary.NativeEndian
	flags := uint16(unix.NLM_F_REQUEST)
	if kind == diagDestroy {
		flags |= unix.NLM_F_ACK
	}
	ne.PutUint32(b[0:], diagRequestLen)
	ne.PutUint16(b[4:], kind)
	ne.PutUint16(b[6:], flags)
	b[diagFamily], b[diagFamily+1] = unix.AF_INET, unix.IPPROTO_TCP
	if k.Family == family6 {
		b[diagFamily] = unix.AF_INET6
	}
	ne.PutUint32(b[diagStates:], ^uint32(0))
	ne.PutUint16(b[diagSport:], k.Rport)
	ne.PutUint16(b[diagDport:], k.Lport)
	copy(b[diagSource:], k.Raddr[:])
	copy(b[diagDest:], k.Laddr[:])
	ne.PutUint32(b[diagInterface:], ifindex)
	ne.PutUint64(b[diagCookie:], cookie)
	return b
}
