package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

func TestCopiesPerByte(t *testing.T) {
	s := admin.Snapshot{
		BytesTotal: map[config.Carrier]admin.ByteCount{config.CarrierShm: {Tx: 10, Rx: 1}, config.CarrierSoft: {Tx: 100, Rx: 10}, config.CarrierHW: {Tx: 4, Rx: 3}},
		Devices: []admin.DeviceInfo{
			{Carrier: config.CarrierShm, Counters: map[string]uint64{"bells_sent": 5}},
			{Carrier: config.CarrierSoft, Counters: map[string]uint64{"tx_bytes": 1000, "rx_bytes": 2000, "rx_packets": 7}},
		},
		Ended: []admin.DeviceInfo{{Carrier: config.CarrierSoft, Counters: map[string]uint64{"tx_bytes": 20000}}},
	}
	require.Equal(t, map[config.Carrier]uint64{config.CarrierShm: 11, config.CarrierHW: 7, config.CarrierSoft: 23120, config.CarrierRelay: 0}, copiedBytes(&s))
}
