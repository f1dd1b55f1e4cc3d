package hw

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// Reasons why there is no device; match them with errors.Is. A build without cgo returns [verbs.ErrNotSupported].
var (
	ErrLibraryAbsent  = ibv.ErrLibraryAbsent
	ErrProviderAbsent = ibv.ErrProviderAbsent
	ErrNoDevice       = ibv.ErrNoDevice
	// ErrUnsuitable is an adapter that lacks what every user of package verbs relies on.
	ErrUnsuitable = errors.New("adapter unsuitable")
)

// ErrCQFull is CreateQP on a completion queue that the queue pair could overrun; see Config.BoundCQs.
var ErrCQFull = errors.New("completion queue has no room for the queue pair's completions")

// failure converts an error of the library to one of package verbs.
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
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODEV): // the driver removed the device
		class = verbs.ErrClosed
	default:
		class = verbs.ErrInvalid
	}
	return fmt.Errorf("%s: %w: %w", what, class, err)
}

// ended converts the error of a call that ends an object. It is nil if the driver has removed the device, which ends
// all objects.
func (d *Device) ended(what string, err error) error {
	err = failure(what, err)
	if errors.Is(err, verbs.ErrClosed) {
		if _, asked := d.ctx.QueryPort(d.cfg.Port); errors.Is(failure("query port", asked), verbs.ErrClosed) {
			return nil
		}
	}
	return err
}
