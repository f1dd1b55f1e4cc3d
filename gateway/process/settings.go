package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// netSettings is where the kernel's settings of network namespaces are.
const netSettings = "/proc/sys/net"

// openSettings makes the network settings writable if a container engine has made all of
// /proc/sys read-only. It does so in the container's mount namespace, so the change ends with
// it. The gateway has to change settings of its own devices and of the namespace of its
// sockets. Without permission it does nothing, and the datapath reports what is missing.
func openSettings() error {
	if os.Getenv(RoleEnv) != "" {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(netSettings, &st); err != nil || st.Flags&unix.ST_RDONLY == 0 {
		return nil //nolint:nilerr // a kernel without them needs none
	}
	err := unix.Mount(netSettings, netSettings, "", unix.MS_BIND, "")
	if err == nil {
		err = unix.Mount("", netSettings, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", netSettings, err)
	}
	return nil
}
