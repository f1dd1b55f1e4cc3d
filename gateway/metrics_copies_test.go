package gateway

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestCopiesPerByte(t *testing.T) {
	s := Snapshot{
		BytesTotal: map[Carrier]ByteCount{CarrierShm: {Tx: 10, Rx: 1}, CarrierSoft: {Tx: 100, Rx: 10}},
		Devices: []DeviceInfo{
			{Carrier: CarrierShm, Counters: map[string]uint64{"bells_sent": 5}},
			{Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": 1000, "rx_bytes": 2000, "rx_packets": 7}},
		},
	}
	require.Equal(t, map[Carrier]uint64{CarrierShm: 11, CarrierSoft: 3120, CarrierRelay: 0}, s.CopiedBytes())
}

// TestMetricsAreDocumented: docs/OPERATIONS.md has a row for each.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/OPERATIONS.md")
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	NewCollector(&fakeControl{}, "").Describe(descs)
	close(descs)
	require.NotEmpty(t, descs)
	name := regexp.MustCompile(`fqName: "(smcgw_[a-z_]+)"`)
	for d := range descs {
		m := name.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		require.Contains(t, string(text), "`"+m[1]+"`")
	}
}
