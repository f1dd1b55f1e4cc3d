package policy

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// cgroupID returns the kernel's id of a cgroup: its inode number.
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// maxCgroups bounds how many cgroups the patterns of a policy may match.
const maxCgroups = 8000

// Cgroups returns the cgroups that the patterns of the policy currently match, each with the mask of the rules that
// name it.
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
