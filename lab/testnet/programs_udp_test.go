package testnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseSockperf(t *testing.T) {
	s, err := parseSockperf(`sockperf: Test end (interrupted by timer)
sockperf: Test ended
sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=30161; ReceivedMessages=30160
sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=18146; ReceivedMessages=18145
sockperf: # dropped messages = 1; # duplicated messages = 2; # out-of-order messages = 3
sockperf: ---> percentile 75.000 =   15.500
sockperf: ---> percentile 50.000 =   14.500
`)
	require.NoError(t, err)
	require.Equal(t, Sockperf{
		Sent: 30161, Received: 30160, Dropped: 1, Duplicated: 2, OutOfOrder: 3,
		Median: 14500 * time.Nanosecond,
	}, s)
	_, err = parseSockperf("sockperf: no messages were received\n")
	require.Error(t, err)
}
