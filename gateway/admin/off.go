package admin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// OffFlag is the kill switch as a file: it works without a daemon and survives restarts.
// Gateways that share a state directory share the switch, and all gateways also obey the
// switch of the machine.
type OffFlag struct{ path, machine string }

// offFlagText is for operators who find the file.
const offFlagText = "smcgw is switched off: new connections stay native. \"smcgw on\" removes this file.\n"

// NewOffFlag returns the flag of a state directory.
func NewOffFlag(stateDir string) OffFlag {
	return OffFlag{path: offIn(stateDir), machine: MachineOff().path}
}

// MachineOff returns the flag that all gateways of this machine obey, whatever their
// configuration: that of the default state directory.
func MachineOff() OffFlag {
	path := offIn(config.Config{}.WithDefaults().StateDir)
	return OffFlag{path: path, machine: path}
}

func offIn(stateDir string) string { return filepath.Join(stateDir, "off") }

// Path returns the path of the flag's file.
func (f OffFlag) Path() string { return f.path }

// IsSet reports whether the gateway is switched off. A file that cannot be examined counts as
// missing.
func (f OffFlag) IsSet() bool {
	off, _ := f.look()
	return off
}

// look is IsSet. An error means that the state is unknown because the disk, or the server of
// the directory, fails. A directory that this user may not access counts as having no file.
func (f OffFlag) look() (off bool, err error) {
	for _, path := range []string{f.path, f.machine} {
		switch _, e := os.Stat(path); {
		case e == nil:
			return true, nil
		case !errors.Is(e, os.ErrNotExist) && !errors.Is(e, os.ErrPermission) && !errors.Is(e, unix.ENOTDIR):
			err = e
		}
	}
	return false, err
}

// Set creates or removes the file. Doing so twice is not an error.
func (f OffFlag) Set(off bool) error {
	if !off {
		err := os.Remove(f.path)
		if _, left := os.Lstat(f.path); err != nil && !errors.Is(left, os.ErrNotExist) { // a read-only disk refuses even what is not there
			return fmt.Errorf("remove off flag: %w", err)
		}
		return nil
	}
	if f.exists() { // perhaps created by another user
		return nil
	}
	err := os.MkdirAll(filepath.Dir(f.path), 0o755)
	if err != nil {
		err = fmt.Errorf("make state directory: %w", err)
	} else if err = os.WriteFile(f.path, []byte(offFlagText), 0o644); err != nil {
		if f.exists() { // a full disk has room for the file, which is the switch, and not for its text
			return nil
		}
		err = fmt.Errorf("write off flag: %w", err)
	}
	return ofOwner(err)
}

// exists reports whether the file is there.
func (f OffFlag) exists() bool {
	fi, err := os.Stat(f.path)
	return err == nil && fi.Mode().IsRegular()
}

// ofOwner adds to a permission error which users have the permission.
func ofOwner(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission) && os.Geteuid() == 0:
		return fmt.Errorf("%w: a gateway run by root writes only to root's directories; run it as the user of this one, or name another", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: it takes root, or the daemon's user", err)
	}
	return err
}

// writable returns an error if the file could not be created.
func (f OffFlag) writable() error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("state directory %s: %w", dir, err)
	}
	return nil
}

// offPoll is how often a daemon polls the file. The admin socket takes effect at once; the
// poll is for changes made directly in the file system.
const offPoll = time.Second

// filePatience bounds operations on the flag's file, whose server may not answer.
const filePatience = time.Second

var errFlagLate = errors.New("the server of state_dir does not answer")

// atFlag runs an operation on the flag's file, and fails if it takes too long.
func atFlag[T any](ctx context.Context, s *Server, do func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, filePatience, errFlagLate)
	defer cancel()
	return process.Through(ctx, &s.files, do)
}

// watchOff calls fn at once and whenever the file appears or disappears, until ctx ends. It
// repeats a call that failed. If the state is unknown, it assumes the previous one, and off
// initially.
func (s *Server) watchOff(ctx context.Context, fn func(off bool) error) {
	tick := time.NewTicker(offPoll)
	defer tick.Stop()
	for was, told := true, false; ; {
		is, err := atFlag(ctx, s, s.off.look)
		if err != nil {
			is = was
			if !told {
				s.log.Warn("the off flag is not known: new connections are native until it is", "error", err)
			}
		}
		if (!told || is != was) && fn(is) == nil {
			was, told = is, true
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lasts returns an error if the file could not be created.
func (s *Server) lasts() error {
	_, err := atFlag(noDeadline, s, func() (struct{}, error) { return struct{}{}, s.off.writable() })
	return err
}
