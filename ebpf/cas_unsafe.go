package ebpf

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// runAttr is the part of union bpf_attr that BPF_PROG_TEST_RUN uses (linux/bpf.h).
type runAttr struct {
	progFD, retval     uint32
	sizeIn, sizeOut    uint32
	dataIn, dataOut    uint64
	repeat, duration   uint32
	ctxSizeIn, ctxSize uint32
	ctxIn, ctxOut      uint64
	flags, cpu, batch  uint32
	_                  uint32
}

// runCAS runs the compare-and-swap program on a, which the kernel reads and writes in place. The library's own call is
// made for loading programs: it locks the thread, masks signals, and takes three system calls.
func (d *Datapath) runCAS(a *smcgwCasArgs) error {
	var pin runtime.Pinner // attr holds its address as an integer, and stacks move
	pin.Pin(a)
	defer pin.Unpin()
	attr := runAttr{
		progFD: uint32(d.objs.CAS.FD()), ctxSizeIn: uint32(unsafe.Sizeof(*a)), ctxIn: uint64(uintptr(unsafe.Pointer(a))),
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		switch {
		case errno == 0:
			return nil
		case !errors.Is(errno, unix.EINTR) && !errors.Is(errno, unix.EAGAIN):
			return fmt.Errorf("compare and swap: %w", errno)
		}
	}
}
