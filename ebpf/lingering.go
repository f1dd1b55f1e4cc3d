package ebpf

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// The states of a socket that was closed and has something left to deliver: data
// or its FIN are not acknowledged.
const lingeringStates = 1<<tcpFinWait1 | 1<<tcpLastAck | 1<<tcpClosing

const (
	tcpFinWait1 = 4
	tcpLastAck  = 9
	tcpClosing  = 11
)

// dumpBuffer is more than the kernel puts into a datagram of a dump.
const dumpBuffer = 64 << 10

// Lingering counts the legs that were closed, but whose application has yet to take
// what the kernel holds for it: they need the steering.
func (d *Datapath) Lingering() (n int, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	d.mu.Lock()
	defer d.mu.Unlock()
	_, dump := d.cfg.Legs.Diag()
	buf := make([]byte, dumpBuffer)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		req := dumpRequest(family, lingeringStates)
		if err := unix.Sendto(dump, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return n, fmt.Errorf("sock_diag: %w", err)
		}
		for more := true; more; {
			size, _, err := unix.Recvfrom(dump, buf, 0)
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

// dumpRequest asks for all TCP sockets of a family in some states.
func dumpRequest(family byte, states uint32) (b [diagRequestLen]byte) {
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], diagRequestLen)
	ne.PutUint16(b[4:], diagByFamily)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b[diagFamily], b[diagFamily+1] = family, unix.IPPROTO_TCP
	ne.PutUint32(b[diagStates:], states)
	return b
}

// countSockets counts those in one datagram of a dump, and says whether more
// datagrams follow.
func countSockets(b []byte) (n int, more bool, err error) {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return 0, false, fmt.Errorf("sock_diag: %w", err)
	}
	for i := range msgs {
		m := &msgs[i]
		switch m.Header.Type {
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
