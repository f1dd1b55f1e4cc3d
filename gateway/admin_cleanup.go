package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/verbs/shm"
)

// ErrDaemonAlive is returned by Cleanup when there is nothing orphaned.
var ErrDaemonAlive = errors.New("a daemon is running")

// Cleanup removes what a daemon that did not stop properly may have left:
// routing rules and tables, a setting of lo, its admin socket, and that in shm_dir. Programs, maps and TUN
// devices need no cleaning, they end with the processes that hold them. The
// off flag stays: it is meant to outlive the daemon. Cleanup is idempotent,
// and refuses with ErrDaemonAlive while a daemon lives.
func Cleanup(cfg Config) error {
	old := removeDeadSocket(cfg.Admin + drainingSuffix)
	if errors.Is(old, ErrAdminInUse) {
		old = fmt.Errorf("%w: %w", ErrDaemonAlive, old)
	}
	lock, err := cleanupLock(cfg.Admin)
	if err != nil {
		return err
	}
	defer lock.Close()
	errs := []error{old}
	for _, n := range generations {
		err := ebpf.Cleanup(cfg.generation(n))
		switch {
		case errors.Is(err, ebpf.ErrInUse):
			errs = append(errs, fmt.Errorf("%w: %w", ErrDaemonAlive, err))
		case err != nil:
			errs = append(errs, fmt.Errorf("clean up datapath: %w", err))
		}
	}
	return errors.Join(append(errs, removeDeadSocket(cfg.Admin), shm.Sweep(cfg.ShmDir))...)
}

// removeRemains removes what gateways of later generations have left that were
// killed together with their guardians. The first generation is that of who starts,
// and puts its own in order. Of a process that is just dying the devices go last:
// they are waited for.
func removeRemains(ctx context.Context, cfg Config, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, remainsTimeout)
	defer cancel()
	for _, n := range generations[1:] {
		err := ebpf.Cleanup(cfg.generation(n))
		for errors.Is(err, ebpf.ErrInUse) && ctx.Err() == nil {
			time.Sleep(remainsAgain)
			err = ebpf.Cleanup(cfg.generation(n))
		}
		if err != nil {
			log.Warn("remains of a gateway not removed", "generation", n, "error", err)
		}
	}
}

// remainsTimeout bounds the wait for a process to die, remainsAgain is between two
// looks.
const (
	remainsTimeout = 2 * time.Second
	remainsAgain   = 20 * time.Millisecond
)

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
