package admin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/smcgw/smcgw/gateway/config"
)

// ErrDaemonAlive is returned by Cleanup when a daemon is running.
var ErrDaemonAlive = errors.New("a daemon is running")

// Cleanup removes what a daemon that did not stop cleanly left of its admin socket, and then
// runs more, while no other daemon can start. It returns the names of the sockets that were
// removed. It is idempotent, and fails with ErrDaemonAlive while a daemon is alive.
func Cleanup(cfg config.Config, more ...func() error) (removed []string, err error) {
	before := socketFiles(cfg)
	err = cleanup(cfg, more)
	after := socketFiles(cfg)
	return slices.DeleteFunc(before, func(name string) bool { return slices.Contains(after, name) }), err
}

// socketFiles lists the sockets that exist in the places named by a configuration.
func socketFiles(cfg config.Config) (names []string) {
	places := []string{cfg.Admin, cfg.Admin + config.DrainingSuffix, cfg.InProcess.Socket}
	entries, _ := os.ReadDir(cfg.ShmDir)
	for _, e := range entries {
		places = append(places, filepath.Join(cfg.ShmDir, e.Name()))
	}
	for _, name := range places {
		if fi, err := os.Lstat(name); err == nil && fi.Mode().Type() == os.ModeSocket {
			names = append(names, name)
		}
	}
	return names
}

func cleanup(cfg config.Config, more []func() error) error {
	old := removeDeadSocket(cfg.Admin + config.DrainingSuffix)
	if errors.Is(old, errAdminInUse) {
		old = fmt.Errorf("%w: %w", ErrDaemonAlive, old)
	}
	lock, err := cleanupLock(cfg.Admin)
	if err != nil {
		return err
	}
	defer lock.Close() // it may be nil
	errs := []error{old}
	errs = append(errs, removeDeadSocket(cfg.Admin))
	for _, sweep := range more {
		errs = append(errs, sweep())
	}
	return errors.Join(errs...)
}

// cleanupLock keeps a daemon from starting while the remains of another are removed. The lock
// is nil if no daemon has ever run there.
func cleanupLock(admin string) (*os.File, error) {
	lock, err := awaitLock(admin+".lock", deathPatience)
	switch {
	case errors.Is(err, errAdminInUse):
		return nil, fmt.Errorf("%w: %w", ErrDaemonAlive, err)
	case errors.Is(err, os.ErrNotExist): // not even the directory exists
		return nil, nil
	case err != nil:
		return nil, err
	}
	return lock, nil
}
