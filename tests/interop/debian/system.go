package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/smcgw/smcgw/lab/testnet"
)

// System is a running Debian.
type System struct {
	Root string // its files, as this machine sees them

	dir    string
	cgroup *testnet.Cgroup
	cmd    *testnet.Cmd
	init   int // PID of its first process
	said   bytes.Buffer
}

// becomeFirst is the first process until systemd replaces it. It mounts the file systems that a machine's kernel and
// boot loader would have mounted.
const becomeFirst = `
r=$1
mount --bind "$r" "$r"
mount -t proc proc "$r/proc"
mount -t sysfs -o ro sysfs "$r/sys"
mount -t cgroup2 cgroup2 "$r/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$r/run"
mount -t tmpfs -o mode=755 tmpfs "$r/dev"
for n in null zero full random urandom tty; do
	touch "$r/dev/$n"
	mount --bind "/dev/$n" "$r/dev/$n"
done
mkdir -p "$r/dev/net" "$r/dev/pts" "$r/dev/shm" "$r/old"
mknod -m 666 "$r/dev/net/tun" c 10 200 # as udev has it for every user
mount -t devpts -o newinstance,ptmxmode=666 devpts "$r/dev/pts"
ln -s pts/ptmx "$r/dev/ptmx"
mount -t tmpfs tmpfs "$r/dev/shm"
cd "$r"
pivot_root . old
umount -l /old
rmdir /old
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=journal
`

// startLimit bounds the start of a system.
const startLimit = 2 * time.Minute

// Start starts the Debian of an archive on the host, with files of this machine at given paths in it. All that the
// host starts from then on is in the control group that is the root of the system's.
func Start(ctx context.Context, h *testnet.Host, archive string, files map[string]string) (*System, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "smcgw-debian-")
	if err != nil {
		return nil, err
	}
	s := &System{dir: dir, Root: filepath.Join(dir, "root")}
	if err := s.start(ctx, h, archive, files); err != nil {
		return nil, errors.Join(fmt.Errorf("start debian: %w: %s", err, s.said.String()), s.Close())
	}
	return s, nil
}

func (s *System) start(ctx context.Context, h *testnet.Host, archive string, files map[string]string) error {
	if err := os.Mkdir(s.Root, 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-C", s.Root, "--numeric-owner", "-xpf", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack: %w: %s", err, out)
	}
	for name, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.Root, name), content, 0o755); err != nil {
			return err
		}
	}
	var err error
	if s.cgroup, err = testnet.NewCgroup(filepath.Base(s.dir)); err != nil {
		return err
	}
	h.Within(s.cgroup)
	s.cmd = h.Command(context.Background(), "unshare", "--fork", "--kill-child", "--pid", "--mount", "--uts", "--ipc", "--cgroup",
		"--propagation", "private", "sh", "-ec", becomeFirst, "sh", s.Root)
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	if err := s.cmd.Start(); err != nil {
		return err
	}
	return s.awaitStart(ctx)
}

// awaitStart waits until systemd has finished starting.
func (s *System) awaitStart(ctx context.Context) error {
	for {
		if s.init == 0 {
			s.init = child(s.cmd.Process.Pid)
		}
		out, err := s.Run(ctx, "systemctl", "is-system-running")
		switch strings.TrimSpace(out) {
		case "running", "degraded": // degraded: for instance because there is no console
			return nil
		}
		if errSleep := testnet.Sleep(ctx, 100*time.Millisecond); errSleep != nil {
			return errors.Join(errSleep, err)
		}
	}
}

// child returns the first child of a process, or 0.
func child(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// Run runs a program in the system and returns what it printed.
func (s *System) Run(ctx context.Context, name string, args ...string) (string, error) {
	if s.init == 0 {
		return "", errors.New("the system has no first process")
	}
	all := append([]string{"-t", strconv.Itoa(s.init), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", name}, args...)
	cmd := exec.CommandContext(ctx, "nsenter", all...)
	cmd.WaitDelay = time.Second // processes that it has started may hold its output open
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return string(out), err
}

// Close kills the system and removes it.
func (s *System) Close() error {
	var errs []error
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
	if s.cgroup != nil {
		errs = append(errs, s.cgroup.Kill(), removeGroups(s.cgroup.Path), s.cgroup.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// removeGroups removes the control groups below one, innermost first. They have no processes any more.
func removeGroups(path string) error {
	var groups []string
	err := filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && at != path {
			groups = append(groups, at)
		}
		return err
	})
	for _, group := range slices.Backward(groups) {
		err = errors.Join(err, removeGroup(group))
	}
	return err
}

// removeGroup removes a control group once its killed processes have ended.
func removeGroup(path string) error {
	var err error
	for range 500 {
		if err = os.Remove(path); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}
