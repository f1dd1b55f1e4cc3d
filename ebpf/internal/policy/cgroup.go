package policy

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupMount returns the cgroup2 mount of this process.
func CgroupMount() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mountinfo: %w", err)
	}
	defer func() { _ = f.Close() }()
	return CgroupIn(f)
}

// CgroupIn returns the first cgroup2 mount of a mountinfo (proc(5): fields
// after the separator " - " are type, source, options).
func CgroupIn(mountinfo io.Reader) (string, error) {
	sc := bufio.NewScanner(mountinfo)
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
	return "", fmt.Errorf("cgroup2 mount: %w", fs.ErrNotExist)
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

// Cgroups resolves the patterns of a policy to the cgroups that exist now, each with the
// rules that name it.
func (p *Policy) Cgroups(mount string) map[uint64]uint64 {
	ids := map[uint64]uint64{}
	for _, pat := range p.Patterns {
		dirs, err := filepath.Glob(filepath.Join(mount, pat.Glob))
		if err != nil {
			continue // checked when the policy was compiled
		}
		for _, dir := range dirs {
			id, err := cgroupID(dir)
			if err == nil && len(ids) < maxCgroups {
				ids[id] |= pat.Mask
			}
		}
	}
	return ids
}
