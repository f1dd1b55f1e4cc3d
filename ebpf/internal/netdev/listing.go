package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tries bounds the attempts. Only on a host that does nothing else would every single one of them be disturbed by a
// change.
const tries = 32

// Whole calls ask until nothing changed during the call, and returns the last answer in any case. Two errors tell of a
// change: ErrDumpInterrupted of a netlink dump (NLM_F_DUMP_INTR of linux/netlink.h), and ENOSPC of BPF_PROG_QUERY,
// whose buffer has room for as many programs as there were just before. A complete list may still be outdated when the
// caller looks at it; the caller must follow the events for that.
func Whole[T any](ask func() (T, error)) (list T, err error) {
	for range tries {
		list, err = ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.ENOSPC) {
			break
		}
	}
	return list, err
}
