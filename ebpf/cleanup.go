package ebpf

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cleanup removes the rules and routes of a gateway that is gone from the
// namespace of the calling thread, and restores what it changed there; all else goes with its process. It is
// idempotent and needs no daemon; ErrInUse if a process still holds the devices,
// in which case nothing is touched.
func Cleanup(cfg Config) error {
	cfg.Policy = nil
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	cfg = cfg.withDefaults()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, name := range []string{cfg.appName(), cfg.wireName()} {
		if err := probeTUN(name); err != nil {
			return err
		}
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("route netlink: %w", err)
	}
	defer nl.Close()
	r := newRouting(nl, cfg)
	changed, err := r.changed()
	if err == nil && changed {
		err = r.restoreAcceptLocal()
	}
	return errors.Join(err, r.teardown())
}

// probeTUN returns ErrInUse if somebody holds the device. A TUN that nobody holds
// does not exist; opening it creates it for a moment.
func probeTUN(name string) error {
	fd, err := openTUN(name)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
