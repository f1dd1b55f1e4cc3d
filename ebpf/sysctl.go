package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// loAcceptLocal is the only sysctl of ours that outlives our devices.
const loAcceptLocal = "ipv4/conf/lo/accept_local"

// sysctlPath maps slash-separated keys below net to /proc. The files show the
// namespace of the calling thread.
func sysctlPath(key string) string { return filepath.Join("/proc/sys/net", key) }

// readSysctl returns a value, or "" if the kernel has no such key.
func readSysctl(key string) (string, error) {
	b, err := os.ReadFile(sysctlPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// writeSysctl sets a value and returns the old one; no-op if it is set already.
func writeSysctl(key, value string) (old string, err error) {
	old, err = readSysctl(key)
	if err != nil || old == value {
		return old, err
	}
	if err := os.WriteFile(sysctlPath(key), []byte(value), 0o644); err != nil {
		return old, fmt.Errorf("sysctl %s: %w", key, err)
	}
	return old, nil
}

// hasIPv6 reports whether the kernel has IPv6 at all.
func hasIPv6() bool {
	_, err := os.Stat(sysctlPath("ipv6"))
	return err == nil
}

// rpFilter returns the reverse-path filter of all interfaces: 0 off, 1 strict, 2
// loose. Strict breaks IPv4 packets that come back from A.
func rpFilter() string {
	v, err := readSysctl("ipv4/conf/all/rp_filter")
	if err != nil {
		return ""
	}
	return v
}
