package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// A directory that other kernels may have is refused before it is swept. The sweep of
// devices that were killed has nothing to do there.
func TestFileSystemOfSeveralKernels(t *testing.T) {
	testnet.Require(t, "root")
	dir := t.TempDir()
	d := openDevice(t, dir)
	var listen, attach, sweep error
	onFUSE(t, dir, func() {
		_, listen = d.Listen()
		_, attach = d.Attach(context.Background(), nameOf(newID()), newID())
		sweep = Sweep(dir)
	})
	require.ErrorIs(t, listen, ErrFileSystem)
	require.ErrorIs(t, attach, ErrFileSystem)
	require.NoError(t, sweep)
	_, err := d.Listen()
	require.NoError(t, err, "the directory below")
}

func TestSharedByKernels(t *testing.T) {
	for _, kind := range []int64{
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC,
		unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	} {
		require.False(t, sharedByKernels(kind), "%#x", kind)
	}
	for _, kind := range []int64{unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC, unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC} {
		require.True(t, sharedByKernels(kind), "%#x", kind)
	}
}

// onFUSE calls fn on a thread that sees a file system of FUSE, as virtiofs is, at dir.
func onFUSE(t *testing.T, dir string, fn func()) {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		testnet.Lack(t, "kernel", err)
		return
	}
	defer unix.Close(dev)
	var server sync.WaitGroup
	mounted := make(chan error)
	go func() { // the thread ends with the goroutine, its mounts with the thread
		runtime.LockOSThread()
		err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err == nil {
			err = unix.Mount("test", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40700,user_id=0,group_id=0", dev))
		}
		if err == nil {
			server.Go(func() { serveFUSE(dev) })
			fn()
			err = unix.Unmount(dir, 0)
		}
		mounted <- err
	}()
	require.NoError(t, <-mounted)
	server.Wait()
}

// serveFUSE is a file system with an empty directory of mode 0700, until it is unmounted.
func serveFUSE(dev int) {
	const (
		forget, getattr, statfs, initialize = 2, 3, 17, 26
		header                              = 16
	)
	in := make([]byte, 1<<18)
	for {
		n, err := unix.Read(dev, in)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT): // a request that was interrupted
			continue
		case err != nil || n < 40:
			return
		}
		out := make([]byte, header)
		switch binary.NativeEndian.Uint32(in[4:]) {
		case forget:
			continue
		case initialize: // version 7.31
			out = append(out, make([]byte, 64)...)
			binary.NativeEndian.PutUint32(out[header:], 7)
			binary.NativeEndian.PutUint32(out[header+4:], 31)
			binary.NativeEndian.PutUint32(out[header+20:], 4096) // the largest write
		case getattr:
			out = append(out, make([]byte, 104)...)
			binary.NativeEndian.PutUint64(out[header+16:], 1)                  // inode
			binary.NativeEndian.PutUint32(out[header+76:], unix.S_IFDIR|0o700) // mode
			binary.NativeEndian.PutUint32(out[header+80:], 2)                  // links
		case statfs:
			out = append(out, make([]byte, 80)...)
		default:
			errno := -int32(unix.ENOSYS)
			binary.NativeEndian.PutUint32(out[4:], uint32(errno))
		}
		binary.NativeEndian.PutUint32(out, uint32(len(out)))
		copy(out[8:16], in[8:16])
		_, _ = unix.Write(dev, out)
	}
}
