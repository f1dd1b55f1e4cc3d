package sysfs

import (
	"testing"

	"github.com/stretchr/testify/require"
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
