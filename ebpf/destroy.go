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
	diagCookie     = 64

	answerState  = 17
	answerCookie = 60
	answerLen    = 68
	errorCode    = 16
	errorLen     = 20

	tcpEstablished = 1
	tcpFinWait2    = 5
	tcpTimeWait    = 6
	tcpCloseWait   = 8
	tcpListen      = 10

	anyCookie = ^uint64(0)
)

// DestroySocket destroys a stale leg of a flow: one with local address t.Remote and
// remote address t.Local, which was closed and has yet to deliver something. It would
// swallow the next SYN given to the listener, and refuse the next dial from this
// tuple. It reports whether there was one.
func (d *Datapath) DestroySocket(t Tuple) (bool, error) {
	request, _ := d.cfg.Legs.Diag()
	gone, err := d.destroy(t, request, isLeg)
	if err != nil {
		return false, fmt.Errorf("destroy socket of %v: %w", t, err)
	}
	return gone, nil
}

// isLeg guards against the kernel's lookup, which falls back to listeners.
func isLeg(answer []byte) bool { return answer[answerState] != tcpListen }

// ForgetTimeWait ends the TIME_WAIT of the local application's socket of a flow
// that has ended on both sides. It guards against nothing, since its peer was a
// leg on this host, and does harm: the client's next connection on
// the tuple would be native, and the kernel would compare its timestamps with
// those of the gateway socket. It reports whether there was one.
func (d *Datapath) ForgetTimeWait(t Tuple) (bool, error) {
	reverse := Tuple{Local: t.Remote, Remote: t.Local} // requests are about the reverse
	gone, err := d.destroy(reverse, d.diag, isTimeWait)
	if err != nil {
		return false, fmt.Errorf("time-wait socket of %v: %w", t, err)
	}
	return gone, nil
}

func isTimeWait(answer []byte) bool { return answer[answerState] == tcpTimeWait }

// connected are the states of a socket whose connect() has returned.
const connected = 1<<tcpEstablished | 1<<tcpFinWait1 | 1<<tcpFinWait2 | 1<<tcpCloseWait | 1<<tcpLastAck | 1<<tcpClosing

// AppConnected reports whether the local application's kernel takes the flow's
// connection for established.
func (d *Datapath) AppConnected(t Tuple) (bool, error) {
	reverse := Tuple{Local: t.Remote, Remote: t.Local} // requests are about the reverse
	is, err := d.socket(reverse, d.diag, func(_ smcgwFlowKey, answer []byte) (bool, error) {
		return connected>>answer[answerState]&1 != 0, nil
	})
	if err != nil {
		return false, fmt.Errorf("socket of %v: %w", t, err)
	}
	return is, nil
}

// destroy finds the socket whose addresses are the reverse of t, in the namespace of
// a sock_diag socket, and destroys it if it is the one meant: the kernel is
// told its cookie, so nothing else can take its place. It reports whether there
// was one.
func (d *Datapath) destroy(t Tuple, diag int, meant func(answer []byte) bool) (bool, error) {
	return d.socket(t, diag, func(k smcgwFlowKey, answer []byte) (bool, error) {
		if !meant(answer) {
			return false, nil
		}
		cookie := binary.NativeEndian.Uint64(answer[answerCookie:])
		_, err := d.diagnoseLocked(diag, diagRequest(k, diagDestroy, cookie))
		return err == nil, err
	})
}

// socket has use look at what the kernel says of the socket whose addresses are the
// reverse of t, in the namespace of a sock_diag socket. It returns what use does,
// false where there is no such socket, or none any more. use holds mu; the answer is
// valid until its next request.
func (d *Datapath) socket(t Tuple, diag int, use func(k smcgwFlowKey, answer []byte) (bool, error)) (bool, error) {
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
	is := false
	answer, err := d.diagnoseLocked(diag, diagRequest(k, diagByFamily, anyCookie))
	if err == nil {
		if len(answer) < answerLen {
			return false, fmt.Errorf("sock_diag answer of %d bytes", len(answer))
		}
		is, err = use(k, answer)
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return is, err
}

// diagnoseLocked sends a request and returns the answer, valid until the next
// one, or its error.
func (d *Datapath) diagnoseLocked(diag int, req [diagRequestLen]byte) ([]byte, error) {
	if err := unix.Sendto(diag, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("sock_diag: %w", err)
	}
	buf := d.answer[:]
	n, _, err := unix.Recvfrom(diag, buf, 0)
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
func diagRequest(k smcgwFlowKey, kind uint16, cookie uint64) (b [diagRequestLen]byte) {
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
	ne.PutUint64(b[diagCookie:], cookie)
	return b
}
