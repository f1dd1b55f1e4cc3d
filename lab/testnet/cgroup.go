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

// Cgroup is a control group of the unified hierarchy, for policies that select
// programs by it.
type Cgroup struct {
	// Path is absolute in the file system; Name is relative to the root of
	// the hierarchy and begins with a slash, as in /proc/PID/cgroup.
	Path, Name string

	dir *os.File
}

// NewCgroup makes a control group below the root of the hierarchy.
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

// Hold makes the command start inside the control group.
func (g *Cgroup) Hold(cmd *Cmd) {
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(g.dir.Fd())
}

// Processes lists those in the control group, by ID; none where it is gone.
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

// Kill ends all processes in the control group.
func (g *Cgroup) Kill() error {
	if err := os.WriteFile(filepath.Join(g.Path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// Close removes the control group. Its processes must have ended, or been killed: on a
// busy machine they need a moment.
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
