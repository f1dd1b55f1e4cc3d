package sysfs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/testnet"
)

// TestUevents: of what the kernel tells, adapters count.
func TestUevents(t *testing.T) {
	require.True(t, isAdapter([]byte("add@/devices/pci0000:00/infiniband/mlx5_0\x00ACTION=add\x00SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00")))
	require.False(t, isAdapter([]byte("add@/devices/virtual/infiniband_verbs/uverbs0\x00SUBSYSTEM=infiniband_verbs\x00")))
	require.False(t, isAdapter(nil))
	u, err := Listen()
	require.NoError(t, err)
	u.Close() // ends its goroutine
}

// TestUeventsThatAreLost: messages for which the socket had no room count as a change.
func TestUeventsThatAreLost(t *testing.T) {
	testnet.InNamespace(t, func() {
		socket := func() int {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
			require.NoError(t, err)
			return fd
		}
		group := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}
		to, from := socket(), socket()
		defer unix.Close(from)
		require.NoError(t, unix.SetsockoptInt(to, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
		require.NoError(t, unix.Bind(to, group))
		u := &Changes{file: os.NewFile(uintptr(to), "uevents"), changed: make(chan struct{}, 1)}
		defer u.Close()
		noise := append([]byte("change@/x\x00SUBSYSTEM=net\x00"), make([]byte, 900)...)
		for range 16 { // as they come from the kernel, nothing tells their sender
			_ = unix.Sendto(from, noise, 0, group)
		}
		u.done.Go(u.run)
		select {
		case <-u.changed:
		case <-time.After(10 * time.Second):
			t.Error("messages were lost, and nothing was told")
		}
	})
}
