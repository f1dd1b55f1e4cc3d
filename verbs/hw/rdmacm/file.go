package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// DevicePath is the kernel's connection manager, of the module rdma_ucm.
const DevicePath = "/dev/infiniband/rdma_cm"

// kernel is what the commands are given to.
type kernel interface {
	// call gives a command to the kernel, which writes its answer.
	call(c command, answer []byte) error
	// next waits for an event and writes it to answer. It returns when ctx ends, or with os.ErrClosed after close.
	next(ctx context.Context, answer []byte) error
	// close ends all identifiers.
	close() error
}

// file is the kernel's manager: an open file, with identifiers and a queue of events of its own.
type file struct {
	*os.File

	raw syscall.RawConn
}

// openFile opens the device. A host without is ErrAbsent.
func openFile() (*file, error) {
	fd, err := syscall.Open(DevicePath, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		err = &fs.PathError{Op: "open", Path: DevicePath, Err: err}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) {
			return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		return nil, err
	}
	f := &file{File: os.NewFile(uintptr(fd), DevicePath)}
	if f.raw, err = f.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// call implements kernel. No command that is used here waits for a peer.
func (f *file) call(c command, answer []byte) error {
	var err error
	if rawErr := f.raw.Control(func(fd uintptr) { err = write(fd, c, answer) }); rawErr != nil {
		return fmt.Errorf("%v: %w", c.number(), os.ErrClosed)
	}
	return err
}

// next implements kernel.
func (f *file) next(ctx context.Context, answer []byte) error {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var err error
	rawErr := f.raw.Read(func(fd uintptr) bool {
		err = write(fd, getEvent{}, answer)
		return !errors.Is(err, syscall.EAGAIN)
	})
	switch {
	case rawErr == nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return rawErr
	}
}

// close implements kernel.
func (f *file) close() error { return f.Close() }
