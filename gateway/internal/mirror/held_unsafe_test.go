package mirror_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/negotiate"
)

// hold has a thread write to a socket from memory that does not come: meanwhile the kernel has the socket locked.
func hold(t *testing.T, fd int) (release func()) {
	t.Helper()
	const api, register, missing = 0xc018aa3f, 0xc020aa00, 1 // UFFDIO_API, UFFDIO_REGISTER and its mode
	faults, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skip("userfaultfd:", errno)
	}
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	a := [3]uint64{0xaa}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, faults, api, uintptr(unsafe.Pointer(&a)))
	require.Zero(t, errno)
	r := [4]uint64{uint64(uintptr(unsafe.Pointer(&page[0]))), uint64(len(page)), missing}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, faults, register, uintptr(unsafe.Pointer(&r)))
	require.Zero(t, errno)
	var writer sync.WaitGroup
	writer.Go(func() { _, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&page[0])), 1) })
	_, err = unix.Read(int(faults), make([]byte, 32)) // the fault
	require.NoError(t, err)
	return func() {
		require.NoError(t, unix.Close(int(faults)))
		writer.Wait()
		require.NoError(t, unix.Munmap(page))
	}
}

// TestHeldUpByProgram checks that a program that keeps its socket locked delays only itself.
func TestHeldUpByProgram(t *testing.T) {
	gws := newGateways(t)
	h := &loop.Heart{Write: func() error { return nil }, Pulse: new(loop.Pulse), Log: slog.New(slog.DiscardHandler)}
	h.Watch([]*loop.Shard{gws[0].shard, gws[1].shard})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { h.Run(ctx) })
	bad, good := connect(t, gws, negotiate.CarrierSoft, 16), connect(t, gws, negotiate.CarrierSoft, 16)
	sent := uint64(0)
	held := func(meanwhile func()) {
		lib := bad[1].lib
		lib.alone = true
		read := make(chan error)
		to := lib.tail + 100
		go func() { read <- bad[1].receive(to, 100, func() {}) }()
		require.Eventually(t, func() bool { return word32(lib.own, inprocess.EndArm).Load() != 0 }, patience, time.Millisecond)
		release := hold(t, lib.sock)
		require.NoError(t, bad[0].send(to, 100, func() {}))
		meanwhile()
		sent += 1 << 20
		require.NoError(t, errors.Join(exchange(good, sent, 9999, func() {})...))
		require.Empty(t, read)
		release()
		require.NoError(t, expect(t, read, "end of the read"))
	}
	held(func() {}) // the shard makes the call
	held(func() {}) // another goroutine makes it
	bad[1].lib.alone = false
	require.NoError(t, errors.Join(exchange(bad, 1<<20, 9999, func() {})...))
	require.Empty(t, bad[1].lost)

	gone := make(chan struct{}, 1)
	held(func() {
		bad[1].Close(func() { gone <- struct{}{} })
		require.Never(t, func() bool { return len(gone) > 0 }, 50*time.Millisecond, 10*time.Millisecond, "it still has a call")
	})
	expect(t, gone, "end of the end")
}
