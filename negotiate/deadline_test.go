package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDeadlines(t *testing.T) {
	ms := time.Millisecond
	require.Equal(t, 204*ms, budget(200*ms, ms))
	require.Equal(t, maxBudget, budget(200*ms, time.Hour))
	require.Equal(t, 200*ms, proofTimeout(200*ms, ms))
	require.Equal(t, 300*ms, proofTimeout(200*ms, 150*ms))
	require.Equal(t, time.Second, proofTimeout(10*time.Second, ms))
	require.Equal(t, 500*ms, completingTime(2*time.Second))
	require.Equal(t, 2500*ms, completingTime(10*time.Second))
	require.Equal(t, 180*ms, serveTime(208*ms, ms))
	require.Equal(t, 50*ms, serveTime(100*ms, 40*ms))
	require.Equal(t, 2706*ms+130*time.Second, lastWordTime(204*ms, ms))
}

// A server always waits for longer than the client can take: its clock starts half a round trip after the client's, the
// last word needs another half.
func TestDeadlinesNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "timeout"))
		rtt := time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "rtt"))
		budget := budget(timeout, rtt)
		require.Greater(t, rtt/2+lastWordTime(budget, rtt), budget+completingTimeout+rtt/2)
		require.Greater(t, rtt/2+lastWordTime(budget, rtt), budget+askTime+appWaitTimeout+rtt/2)
		if budget >= 4*rtt { // the client's and the server's round trips are the same
			require.LessOrEqual(t, rtt/2+serveTime(budget, rtt)+rtt/2, budget)
		}
	})
}
