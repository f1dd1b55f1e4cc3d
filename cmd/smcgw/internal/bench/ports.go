package bench

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// portRange is a range of local ports, both ends included; the zero value is
// the system's. The variants have ranges of their own: what a native connection
// leaves behind at the server, TIME_WAIT, keeps the next one on the tuple native
// too, and it must not be a carrier's.
type portRange struct{ low, high uint16 }

// minPorts is the least a variant can work with: fewer are not divided.
const minPorts = 1024

// systemPorts is the range from which the kernel takes local ports.
func systemPorts() portRange {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return portRange{}
	}
	return parsePorts(string(b))
}

func parsePorts(s string) (r portRange) {
	if n, err := fmt.Sscan(s, &r.low, &r.high); n != 2 || err != nil || r.low == 0 || r.high < r.low {
		return portRange{}
	}
	return r
}

// part is the i-th of n parts of equal size.
func (r portRange) part(i, n int) portRange {
	size := (int(r.high) - int(r.low) + 1) / n
	if r.low == 0 || size < minPorts {
		return portRange{}
	}
	low := int(r.low) + i*size
	return portRange{uint16(low), uint16(low + size - 1)}
}

// control makes the kernel choose from the range; it is net.Dialer.Control.
// Kernels before 6.3 cannot, and choose from all ports.
func (r portRange) control(_, _ string, c syscall.RawConn) error {
	if r.low == 0 {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(r.high)<<16|int(r.low))
	})
}
