package ebpf

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// findCgroup2 returns the first cgroup2 mount of mountinfo (proc(5): fields
// behind the separator " - " are type, source, options).
func findCgroup2() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mountinfo: %w", err)
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		fields := strings.Fields(left)
		if ok && strings.HasPrefix(right, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	if err := sc.Err(); err != nil {
		return "", fmt.Errorf("mountinfo: %w", err)
	}
	return "", fmt.Errorf("cgroup2 mount not found: %w", ErrKernel)
}

// cgroupID returns the kernel's id of a cgroup: its inode number.
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// maxCgroups bounds how many cgroups the patterns of a policy may stand for.
const maxCgroups = 8000

// cgroupIDs resolves the patterns of a policy to the cgroups that exist now.
func cgroupIDs(mount string, patterns []cgroupPattern) map[uint64]uint64 {
	ids := map[uint64]uint64{}
	for _, p := range patterns {
		dirs, err := filepath.Glob(filepath.Join(mount, p.pattern))
		if err != nil {
			continue // checked when the policy was compiled
		}
		for _, dir := range dirs {
			id, err := cgroupID(dir)
			if err == nil && len(ids) < maxCgroups {
				ids[id] |= p.mask
			}
		}
	}
	return ids
}
