package comparison

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThisMachine(t *testing.T) {
	m := ThisMachine("reno")
	require.Positive(t, m.CPUs)
	require.NotEmpty(t, m.Kernel)
	require.NotEmpty(t, m.GoVersion)
	require.Equal(t, "reno", m.CongestionControl)
	require.False(t, m.Time.IsZero())
	require.NotEmpty(t, ThisMachine("").CongestionControl)
}

func TestCPUModel(t *testing.T) {
	require.Equal(t, "A B @ 2GHz", cpuModel("processor\t: 0\nmodel name\t: A B @ 2GHz\nprocessor: 1\nmodel name: C\n"))
	require.Empty(t, cpuModel("Hardware: none"))
	require.Empty(t, text("/proc/no such file"))
}
