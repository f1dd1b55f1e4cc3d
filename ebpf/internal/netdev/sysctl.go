package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctlPath maps a slash-separated key below net to its file in /proc, which shows the namespace of the calling
// thread.
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

// WriteSysctl sets a value, unless it is already set.
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

// Routable lets programs look up routes for packets from a device on which the kernel does not listen.
func Routable(name string) error {
	err := WriteSysctl("ipv4/conf/"+name+"/forwarding", "1")
	if HasIPv6() {
		err = errors.Join(err, keepRouters(func() error { return WriteSysctl("ipv6/conf/"+name+"/forwarding", "1") }))
	}
	return err
}

// keepRouters calls fn, which enables IPv6 forwarding of a device. When that happens, the kernel drops the default
// routes that any device of the namespace has learned from router advertisements (rt6_purge_dflt_routers), until the
// router advertises again. It keeps those of devices with accept_ra 2, which for a device that does not forward means
// the same as 1. So keepRouters sets accept_ra to 2 meanwhile.
func keepRouters(fn func() error) error {
	devices, err := os.ReadDir(sysctlPath("ipv6/conf"))
	if err != nil {
		return fmt.Errorf("devices with IPv6: %w", err)
	}
	var changed []string
	for _, d := range devices {
		key := "ipv6/conf/" + d.Name()
		if d.Name() == "all" || d.Name() == "default" || !has(key+"/accept_ra", "1") || !has(key+"/forwarding", "0") {
			continue
		}
		if WriteSysctl(key+"/accept_ra", "2") == nil {
			changed = append(changed, key+"/accept_ra")
		}
	}
	err = fn()
	for _, key := range changed {
		if has(key, "2") {
			err = errors.Join(err, WriteSysctl(key, "1"))
		}
	}
	return err
}

// has reports whether key has the given value.
func has(key, value string) bool {
	is, err := ReadSysctl(key)
	return err == nil && is == value
}

// HasIPv6 reports whether the kernel supports IPv6.
func HasIPv6() bool {
	_, err := os.Stat(sysctlPath("ipv6"))
	return err == nil
}

// AtMost limits each number of a setting to the corresponding one of most.
func AtMost(setting string, most []int) string {
	numbers := strings.Fields(setting)
	for i, text := range numbers {
		if n, err := strconv.Atoi(text); err == nil && i < len(most) {
			numbers[i] = strconv.Itoa(min(n, most[i]))
		}
	}
	return strings.Join(numbers, " ")
}

// Enter moves the calling thread to a namespace unless it is already there: moving takes CAP_SYS_ADMIN, which a gateway
// in its own namespace does not have.
func Enter(ns *os.File) error {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if err := unix.Fstat(int(ns.Fd()), &there); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if here.Dev == there.Dev && here.Ino == there.Ino {
		return nil
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}
