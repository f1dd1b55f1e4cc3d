package proof

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/listing"
)

// Sockops lists the sockops programs that apply to the sockets of this process; mount is
// that of cgroup2. Such a program puts sockets into socket maps. The kernel does not tell
// when one is attached.
func Sockops(mount string) ([]link.AttachedProgram, error) {
	path, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	group, err := os.Open(filepath.Join(mount, path))
	if errors.Is(err, fs.ErrNotExist) { // the mount is of another cgroup namespace
		group, err = os.Open(mount)
	}
	if err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	defer func() { _ = group.Close() }()
	found, err := listing.Whole(func() (*link.QueryResult, error) {
		return link.QueryPrograms(link.QueryOptions{
			Target: int(group.Fd()), Attach: bpf.AttachCGroupSockOps,
			QueryFlags: unix.BPF_F_QUERY_EFFECTIVE, // with those of the control groups above
		})
	})
	if err != nil {
		return nil, fmt.Errorf("sockops programs: %w", err)
	}
	return found.Programs, nil
}

// ownCgroup returns the path of this process in the hierarchy of cgroup2 (cgroups(7):
// the line of hierarchy 0).
func ownCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("own control group: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path, nil
		}
	}
	return "", errors.New("own control group: no cgroup2")
}
