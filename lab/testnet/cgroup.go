package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// Cgroup is a cgroup of the unified hierarchy, for policies that select programs by cgroup.
type Cgroup struct {
	// Path is the absolute path in the file system. Name is relative to the root of the hierarchy and begins with a
	// slash, as in /proc/PID/cgroup.
	Path, Name string

	dir *os.File
}

// NewCgroup creates a cgroup below the root of the hierarchy.
func NewCgroup(name string) (*Cgroup, error) {
	root, err := procfs.CgroupMount()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(root, name)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("create cgroup: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return &Cgroup{Path: path, Name: "/" + name, dir: dir}, nil
}

// Hold makes the command start inside the cgroup.
func (g *Cgroup) Hold(cmd *Cmd) {
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(g.dir.Fd())
}

// Processes returns the ids of the processes in the cgroup, or none if the cgroup is gone.
func (g *Cgroup) Processes() (pids []int) {
	b, err := os.ReadFile(filepath.Join(g.Path, "cgroup.procs"))
	if err != nil {
		return nil
	}
	for text := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(text); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill kills all processes in the cgroup.
func (g *Cgroup) Kill() error {
	if err := os.WriteFile(filepath.Join(g.Path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// Close removes the cgroup. Its processes must have ended or been killed; it waits a moment for them, since a busy
// machine needs that.
func (g *Cgroup) Close() error {
	_ = g.dir.Close()
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if err = os.Remove(g.Path); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup: %w", err)
}
