package negotiate

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeen(t *testing.T) {
	var s Seen
	mac := func(i int) (m MAC) {
		binary.BigEndian.PutUint64(m[:], uint64(i))
		return m
	}
	const last = 3*seenMost + seenMost/2 // half of a generation is young
	for i := range last {
		require.True(t, s.first(mac(i)))
		require.False(t, s.first(mac(i)))
	}
	for i := last - seenMost; i < last; i++ {
		require.False(t, s.first(mac(i)), "of the last ones")
	}
	require.LessOrEqual(t, len(s.young)+len(s.old), 2*seenMost)
}

// A PROPOSAL is believed once, even if its connection came again as it was.
func TestServerBelievesAProposalOnce(t *testing.T) {
	cfg := ServerConfig{Keys: Keys{testKey}, Binding: testBinding, Seen: &Seen{}}
	_, p := proposed(t, ClientConfig{Keys: Keys{testKey}, Binding: testBinding})
	first := NewServer(cfg, testNonce)
	first.Start(t0, testRTT, ConfirmedYes)
	require.IsType(t, Serve{}, first.Receive(t0, p)[0])
	again := NewServer(cfg, testNonce)
	again.Start(t0, testRTT, ConfirmedYes)
	require.IsType(t, Drop{}, again.Receive(t0, p)[1])
	v, _ := again.Verdict()
	require.Equal(t, Verdict{Outcome: OutcomeDeclined, Reason: ReasonAuthFailed}, v)
}
