package report

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevices: a device goes on from what those of its name have counted, one that is not
// there has that, and to read changes nothing.
func TestDevices(t *testing.T) {
	var devices PastDevices
	none := DeviceInfo{Name: "soft0"}
	devices.Sum(&none)
	require.Empty(t, none.Counters)
	devices.End(device("soft0", 1))
	devices.End(device("soft1", 2))
	devices.End(device("soft0", 4))
	for range 2 {
		d := device("soft0", 8)
		devices.Sum(&d)
		require.Equal(t, device("soft0", 13), d)
		gone := DeviceInfo{Name: "soft0"}
		devices.Sum(&gone)
		require.Equal(t, map[string]uint64{"tx_bytes": 5}, gone.Counters)
	}
}

// TestDevicesAreBounded: a host that makes ever new adapters fills no memory.
func TestDevicesAreBounded(t *testing.T) {
	var devices PastDevices
	for i := range 3 * devicesMost {
		devices.End(device("rxe"+strconv.Itoa(i), 1))
		require.LessOrEqual(t, len(devices.past), devicesMost)
	}
	last := DeviceInfo{Name: "rxe" + strconv.Itoa(3*devicesMost-1)}
	devices.Sum(&last)
	require.NotEmpty(t, last.Counters)
}
