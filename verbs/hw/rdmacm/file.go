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

// DevicePath is the device of the kernel's connection manager, from the module rdma_ucm.
const DevicePath = "/dev/infiniband/rdma_cm"

// File is an open file of the kernel's manager, with its own identifiers and queue of events.
type File struct {
	file *os.File
	raw  syscall.RawConn
}

// Open opens the device. On a host without it the error is ErrAbsent.
func Open() (*File, error) {
	fd, err := syscall.Open(DevicePath, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		err = &fs.PathError{Op: "open", Path: DevicePath, Err: err}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ENODEV) {
			return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		return nil, err
	}
	f := &File{file: os.NewFile(uintptr(fd), DevicePath)}
	if f.raw, err = f.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Call executes a command and writes the kernel's answer to answer. No command of this package or its users waits for a
// peer. After Close the error is os.ErrClosed.
func (f *File) Call(c Command, answer []byte) error {
	var err error
	if rawErr := f.raw.Control(func(fd uintptr) { err = write(fd, c, answer) }); rawErr != nil {
		return fmt.Errorf("%v: %w", c.Number(), os.ErrClosed)
	}
	return err
}

// Next waits for an event and writes it to answer. It returns when ctx ends, or with os.ErrClosed after Close.
func (f *File) Next(ctx context.Context, answer []byte) error {
	if err := f.file.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var err error
	rawErr := f.raw.Read(func(fd uintptr) bool {
		err = write(fd, GetEvent{}, answer)
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

// Close closes the file, which destroys all identifiers.
func (f *File) Close() error { return f.file.Close() }
