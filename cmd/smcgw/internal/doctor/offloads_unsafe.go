package doctor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct{ command, data uint32 }

// ifreqData is struct ifreq of linux/if.h with a pointer.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// offloadsOff lists offloads of a device that are switched off, by the names of ethtool -K. Offloads that the driver
// does not report are omitted.
func offloadsOff(device string) (off []string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	for _, o := range []struct {
		name    string
		command uint32
	}{
		{"rx", unix.ETHTOOL_GRXCSUM}, {"tx", unix.ETHTOOL_GTXCSUM}, {"tso", unix.ETHTOOL_GTSO}, {"gso", unix.ETHTOOL_GGSO}, {"gro", unix.ETHTOOL_GGRO},
	} {
		v := ethtoolValue{command: o.command}
		req := ifreqData{data: unsafe.Pointer(&v)}
		copy(req.name[:unix.IFNAMSIZ-1], device)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		if errno == 0 && v.data == 0 {
			off = append(off, o.name)
		}
	}
	return off
}
