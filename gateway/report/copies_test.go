package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopiesPerByte(t *testing.T) {
	s := Snapshot{
		BytesTotal: map[Carrier]ByteCount{CarrierShm: {Tx: 10, Rx: 1}, CarrierSoft: {Tx: 100, Rx: 10}, CarrierHW: {Tx: 4, Rx: 3}},
		Devices: []DeviceInfo{
			{Carrier: CarrierShm, Counters: map[string]uint64{"bells_sent": 5}},
			{Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": 1000, "rx_bytes": 2000, "rx_packets": 7}},
		},
		Ended: []DeviceInfo{{Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": 20000}}},
	}
	require.Equal(t, map[Carrier]uint64{CarrierShm: 11, CarrierHW: 7, CarrierSoft: 23120, CarrierRelay: 0}, copiedBytes(&s))
}
