package rdmacm

import (
	"runtime"
	"syscall"
	"unsafe"
)

// write executes a command; the kernel writes to answer before it returns.
func write(fd uintptr, c Command, answer []byte) error {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	var at uint64
	if len(answer) > 0 {
		pinner.Pin(&answer[0])
		at = uint64(uintptr(unsafe.Pointer(&answer[0])))
	}
	b := Encode(c, at)
	for {
		n, err := syscall.Write(int(fd), b)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return err
		case err != nil:
			errno, _ := err.(syscall.Errno) //nolint:errorlint // it is the errno itself
			return &CommandError{Command: c.Number().String(), Errno: errno}
		case n != len(b):
			return ErrMalformed
		}
		return nil
	}
}
