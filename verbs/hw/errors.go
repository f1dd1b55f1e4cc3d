package hw

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// Why there is no device; match with errors.Is. A build without cgo returns
// [verbs.ErrNotSupported].
var (
	ErrLibraryAbsent  = ibv.ErrLibraryAbsent
	ErrProviderAbsent = ibv.ErrProviderAbsent
	ErrNoDevice       = ibv.ErrNoDevice
	// ErrUnsuitable is an adapter that cannot do what every user of package verbs relies on.
	ErrUnsuitable = errors.New("adapter unsuitable")
)

// ErrCQFull is CreateQP on a completion queue that the queue pair could overrun; see Config.BoundCQs.
var ErrCQFull = errors.New("completion queue has no room for the queue pair's completions")

// failure is an error of the library as users of package verbs know it.
func failure(what string, err error) error {
	var class error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOMEM):
		if short := memlock(); short != nil {
			err = fmt.Errorf("%w: %w", short, err)
		}
		class = verbs.ErrNoMemory
	case errors.Is(err, unix.EAGAIN):
		class = verbs.ErrNoMemory
	case errors.Is(err, unix.EBUSY):
		class = verbs.ErrBusy
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		class = verbs.ErrNotSupported
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODEV): // the driver took the device away
		class = verbs.ErrClosed
	default:
		class = verbs.ErrInvalid
	}
	return fmt.Errorf("%s: %w: %w", what, class, err)
}

// ended is the error of a call that ends an object: none if the driver has taken the
// device away, which ends all of them.
func (d *Device) ended(what string, err error) error {
	err = failure(what, err)
	if errors.Is(err, verbs.ErrClosed) {
		if _, asked := d.ctx.QueryPort(d.cfg.Port); errors.Is(failure("query port", asked), verbs.ErrClosed) {
			return nil
		}
	}
	return err
}
