package metrics

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

func TestCopiesPerByte(t *testing.T) {
	s := report.Snapshot{
		BytesTotal: map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 10, Rx: 1}, report.CarrierSoft: {Tx: 100, Rx: 10}, report.CarrierHW: {Tx: 4, Rx: 3}},
		Devices: []report.DeviceInfo{
			{Carrier: report.CarrierShm, Counters: map[string]uint64{"bells_sent": 5}},
			{Carrier: report.CarrierSoft, Counters: map[string]uint64{"tx_bytes": 1000, "rx_bytes": 2000, "rx_packets": 7}},
		},
		Ended: []report.DeviceInfo{{Carrier: report.CarrierSoft, Counters: map[string]uint64{"tx_bytes": 20000}}},
	}
	require.Equal(t, map[report.Carrier]uint64{report.CarrierShm: 11, report.CarrierHW: 7, report.CarrierSoft: 23120, report.CarrierRelay: 0}, copiedBytes(&s))
}
