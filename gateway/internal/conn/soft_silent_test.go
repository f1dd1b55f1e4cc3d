package conn

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestSoftGivesUpASilentPeer: its flow goes on over the relay, and the carrier has
// to be proved again.
func TestSoftGivesUpASilentPeer(t *testing.T) {
	t.Parallel() // it waits
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSoft)
	mine, other := c.flow[0].chosen(), c.flow[1].chosen()
	mine.Proved()
	other.Shard.Call(func() { _ = other.QP.Close() })
	start := time.Now()
	_, err := c.app[0].Write([]byte("anybody there?"))
	require.NoError(t, err)
	_ = c.app[1].SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 14)
	_, err = io.ReadFull(c.app[1], got)
	require.NoError(t, err)
	require.Equal(t, "anybody there?", string(got))
	require.WithinRange(t, time.Now(), start.Add(2*time.Second), start.Add(patience))
	require.Equal(t, "carrier_unreachable", c.flow[0].Info(time.Now()).Demoted)
	require.Equal(t, report.DemotedByPeer, c.flow[1].Info(time.Now()).Demoted)
	require.False(t, mine.Warm())
	c.closeApps()
	c.over(t)
	p.empty(t)
}
