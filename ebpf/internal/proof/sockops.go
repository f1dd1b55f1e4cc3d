package proof

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/internal/procfs"
)

var errNoCgroup = errors.New("own control group: no cgroup2")

// Sockops returns the sockops programs that apply to the sockets of this process; mount is the cgroup2 mount. Such a
// program may put sockets into socket maps. The kernel does not notify when one is attached.
func Sockops(mount string) ([]link.AttachedProgram, error) {
	path := procfs.CgroupOf(os.Getpid())
	if path == "" {
		return nil, errNoCgroup
	}
	group, err := os.Open(filepath.Join(mount, path))
	if errors.Is(err, fs.ErrNotExist) { // the mount belongs to another cgroup namespace
		group, err = os.Open(mount)
	}
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	defer func() { _ = group.Close() }()
	found, err := netdev.Whole(func() (*link.QueryResult, error) {
		return link.QueryPrograms(link.QueryOptions{
			Target: int(group.Fd()), Attach: bpf.AttachCGroupSockOps,
			QueryFlags: unix.BPF_F_QUERY_EFFECTIVE, // includes those of the cgroups above
		})
	})
	if err != nil {
		return nil, fmt.Errorf("sockops programs: %w", err)
	}
	return found.Programs, nil
}
