package sysfs

import (
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/internal/procfs"
)

// cgroupRoot is the usual mount of cgroup2, below /.
const cgroupRoot = "sys/fs/cgroup"

// cgroupLimits returns, for each adapter, the lowest limits set by a process's control group and its ancestors.
func cgroupLimits(root fs.FS) map[string]map[string]uint64 {
	proc, _ := text(root, "proc/self", "cgroup")
	at, ok := procfs.Cgroup(proc)
	if !ok {
		return nil
	}
	at = path.Clean("/" + at)[1:] // a group outside of this namespace is treated as below the root
	least := map[string]map[string]uint64{}
	for {
		max, _ := text(root, path.Join(cgroupRoot, at), "rdma.max")
		lower(least, max)
		if at == "" || at == "." {
			return least
		}
		if at = path.Dir(at); at == "." {
			at = ""
		}
	}
}

// lower merges the limits of an rdma.max into least: a line for each adapter, "mlx5_0 hca_handle=2 hca_object=max".
func lower(least map[string]map[string]uint64, max string) {
	for line := range strings.Lines(max) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		for _, f := range fields[1:] {
			name, value, _ := strings.Cut(f, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue // max
			}
			limits := least[fields[0]]
			if limits == nil {
				limits = map[string]uint64{}
				least[fields[0]] = limits
			}
			if have, ok := limits[name]; !ok || n < have {
				limits[name] = n
			}
		}
	}
}
