package netdev

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tries bounds the questions. Something comes or goes within each of them only on a host that
// does nothing else.
const tries = 32

// Whole returns the first answer during which nothing came or went, else the last one.
// Two errors say that something did: ErrDumpInterrupted of a netlink dump
// (NLM_F_DUMP_INTR of linux/netlink.h), and ENOSPC of BPF_PROG_QUERY, which is given room
// for as many programs as there were before. The trap: a list that is whole may be out of
// date when its reader looks at it; the events that the reader follows tell.
func Whole[T any](ask func() (T, error)) (list T, err error) {
	for range tries {
		list, err = ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.ENOSPC) {
			break
		}
	}
	return list, err
}
