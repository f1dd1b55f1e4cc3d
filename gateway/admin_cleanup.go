package gateway

import (
	"errors"
	"fmt"
	"os"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/verbs/shm"
)

// ErrDaemonAlive is returned by Cleanup when there is nothing orphaned.
var ErrDaemonAlive = errors.New("a daemon is running")

// Cleanup removes what a daemon that did not stop properly may have left: its admin
// socket, and that in shm_dir. Programs, maps, devices and the namespace of the legs
// need no cleaning, they end with the processes that hold them. The
// off flag stays: it is meant to outlive the daemon. Cleanup is idempotent,
// and refuses with ErrDaemonAlive while a daemon lives.
func Cleanup(cfg config.Config) error {
	old := removeDeadSocket(cfg.Admin + config.DrainingSuffix)
	if errors.Is(old, ErrAdminInUse) {
		old = fmt.Errorf("%w: %w", ErrDaemonAlive, old)
	}
	lock, err := cleanupLock(cfg.Admin)
	if err != nil {
		return err
	}
	defer lock.Close()
	errs := []error{old}
	return errors.Join(append(errs, removeDeadSocket(cfg.Admin), shm.Sweep(cfg.ShmDir))...)
}

// noLock stands for the lock of a daemon that has never run.
type noLock struct{}

// Close does nothing.
func (noLock) Close() error { return nil }

// cleanupLock keeps a daemon from starting while its remains are removed.
func cleanupLock(admin string) (interface{ Close() error }, error) {
	lock, err := awaitLock(admin+".lock", lockPatience)
	switch {
	case errors.Is(err, ErrAdminInUse):
		return nil, fmt.Errorf("%w: %w", ErrDaemonAlive, err)
	case errors.Is(err, os.ErrNotExist): // not even the directory
		return noLock{}, nil
	case err != nil:
		return nil, err
	}
	return lock, nil
}
