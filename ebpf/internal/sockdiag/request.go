package sockdiag

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

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
