package bench

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// portRange is a range of local ports, both ends included; the zero value is the system's. Each variant has its own
// range: a native connection leaves TIME_WAIT at the server, which keeps the next one on the same tuple native, so a
// carrier must not use that tuple.
type portRange struct{ low, high uint16 }

// minPorts is the minimum number of ports of a variant: a smaller range is not divided.
const minPorts = 1024

// systemPorts returns the range from which the kernel takes local ports.
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

// part returns the i-th of n parts of equal size.
func (r portRange) part(i, n int) portRange {
	size := (int(r.high) - int(r.low) + 1) / n
	if r.low == 0 || size < minPorts {
		return portRange{}
	}
	low := int(r.low) + i*size
	return portRange{uint16(low), uint16(low + size - 1)}
}

// control makes the kernel choose from the range; it is net.Dialer.Control. Kernels before 6.3 cannot, and choose from
// all ports.
func (r portRange) control(_, _ string, c syscall.RawConn) error {
	if r.low == 0 {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, int(r.high)<<16|int(r.low))
	})
}
