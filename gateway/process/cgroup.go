package process

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// cgroupEnv names the descriptor of a cgroup2 hierarchy that has no mount point.
const cgroupEnv = "SMCGW_CGROUP"

// firstCgroupFD is above the descriptors that the processes of a gateway pass by number.
const firstCgroupFD = 100

// openCgroup opens the cgroup2 hierarchy if none is mounted, as in a namespace entered with
// "ip netns exec", for the gateway that this process will be or guard. Without permission it
// does nothing, and the datapath reports what is missing.
func openCgroup() error {
	if os.Getenv(RoleEnv) != "" || os.Getenv(cgroupEnv) != "" {
		return nil
	}
	if _, err := procfs.CgroupMount(); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fd, err := detachedCgroup()
	if errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	passed, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, firstCgroupFD) // for the daemon
	if err != nil {
		return fmt.Errorf("cgroup2: %w", err)
	}
	return os.Setenv(cgroupEnv, strconv.Itoa(passed))
}

// detachedCgroup mounts cgroup2 without a mount point.
func detachedCgroup() (int, error) {
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("cgroup2: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("cgroup2: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return -1, fmt.Errorf("mount cgroup2: %w", err)
	}
	return fd, nil
}

// CgroupMount returns the path where this process sees cgroup2: mounted, or opened by
// Confine.
func CgroupMount() (string, error) {
	if dir := Cgroup(); dir != "" {
		return dir, nil
	}
	mount, err := procfs.CgroupMount()
	if err != nil {
		return "", fmt.Errorf("%w: mount -t cgroup2 none /sys/fs/cgroup", err)
	}
	return mount, nil
}

// Cgroup returns the path of the hierarchy opened by Confine; empty if it is mounted or could
// not be opened.
func Cgroup() string {
	if fd, err := strconv.Atoi(os.Getenv(cgroupEnv)); err == nil {
		return "/proc/self/fd/" + strconv.Itoa(fd)
	}
	return ""
}

// KernelID identifies the kernel that this process runs under without revealing its boot ID:
// two gateways with the same ID can share memory.
func KernelID() (id [16]byte, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("boot id: %w", err)
	}
	m := hmac.New(sha256.New, []byte("smcgw host id"))
	m.Write([]byte(strings.TrimSpace(string(boot))))
	copy(id[:], m.Sum(nil))
	return id, nil
}

// HostName returns the name of the machine, for people.
func HostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}
