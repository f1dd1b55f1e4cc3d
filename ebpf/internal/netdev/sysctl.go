package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctlPath maps slash-separated keys below net to /proc. The files show the
// namespace of the calling thread.
func sysctlPath(key string) string { return filepath.Join("/proc/sys/net", key) }

// ReadSysctl returns a value, or "" if the kernel has no such key.
func ReadSysctl(key string) (string, error) {
	b, err := os.ReadFile(sysctlPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// WriteSysctl sets a value.
func WriteSysctl(key, value string) error {
	if old, err := ReadSysctl(key); err != nil || old == value {
		return err
	}
	err := os.WriteFile(sysctlPath(key), []byte(value), 0o644)
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("sysctl %s: %w: a container engine has made /proc/sys so: start with CAP_SYS_ADMIN, or with /proc/sys/net writable", key, err)
	}
	if err != nil {
		return fmt.Errorf("sysctl %s: %w", key, err)
	}
	return nil
}

// HasIPv6 reports whether the kernel has IPv6 at all.
func HasIPv6() bool {
	_, err := os.Stat(sysctlPath("ipv6"))
	return err == nil
}
