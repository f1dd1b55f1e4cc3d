package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	systemRoot = "/system"
	systemDisk = "/dev/vda"
	// systemFiles are put into the system.
	systemFiles = "/files"
	// systemAgent is this program in the system, which takes commands there.
	systemAgent = "/run/guest-agent"
	serveOnly   = "serve"
)

// becomeSystem unpacks the system of the disk, makes it the root, leaves a process there
// that takes commands, and becomes its first process.
func becomeSystem() error {
	if err := os.MkdirAll(systemRoot, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", systemRoot, "tmpfs", 0, "size=90%,mode=755"); err != nil {
		return fmt.Errorf("mount system: %w", err)
	}
	disk, err := os.Open(systemDisk)
	if err != nil {
		return err
	}
	if err := unpackSystem(bufio.NewReaderSize(disk, 1<<20)); err != nil {
		return fmt.Errorf("unpack system: %w", err)
	}
	if err := os.CopyFS(systemRoot, os.DirFS(systemFiles)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("copy files: %w", err)
	}
	for _, at := range []string{"/proc", "/sys", "/dev", "/run"} {
		if err := unix.Mount(at, systemRoot+at, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", at, err)
		}
	}
	self, err := os.ReadFile("/init")
	if err != nil {
		return err
	}
	if err := os.WriteFile(systemRoot+systemAgent, self, 0o755); err != nil {
		return err
	}
	if err := errors.Join(unix.Chdir(systemRoot), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("change root: %w", err)
	}
	agent := exec.Command(systemAgent, serveOnly) // with the parameters of the guest
	if err := agent.Start(); err != nil {
		return err
	}
	return unix.Exec("/sbin/init", []string{"/sbin/init"}, []string{"PATH=" + os.Getenv("PATH")})
}

// unpackSystem writes what a whole system's archive contains.
func unpackSystem(r io.Reader) error {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(t, h, filepath.Join(systemRoot, filepath.Clean("/"+h.Name))); err != nil {
			return err
		}
	}
}

func unpackEntry(r io.Reader, h *tar.Header, at string) error {
	mode := uint32(h.Mode & 0o7777)
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = os.MkdirAll(at, 0o755)
	case tar.TypeSymlink:
		return os.Symlink(h.Linkname, at)
	case tar.TypeLink:
		return os.Link(filepath.Join(systemRoot, filepath.Clean("/"+h.Linkname)), at)
	case tar.TypeReg:
		var f *os.File
		if f, err = os.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
			_, err = io.Copy(f, r)
			err = errors.Join(err, f.Close())
		}
	default: // devices: /dev is the kernel's
		return nil
	}
	return errors.Join(err, unix.Lchown(at, h.Uid, h.Gid), unix.Chmod(at, mode), os.Chtimes(at, h.ModTime, h.ModTime))
}

// serveSystem takes commands in a system that has been started.
func serveSystem() error {
	if err := environment(); err != nil {
		return err
	}
	out, err := exec.Command("sh", "-c", "until systemctl is-system-running --wait; do case $(systemctl is-system-running) in degraded) exit;; esac; sleep .2; done").CombinedOutput()
	if err != nil {
		return fmt.Errorf("system not started: %w: %s", err, out)
	}
	return nil
}
