package inprocess

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// TestChildBetweenQuestionAndAnswer checks that a child forked between the library's question and the broker's answer,
// which has the end without its memory, goes on by the kernel.
func TestChildBetweenQuestionAndAnswer(t *testing.T) {
	program := shared.For(t).Program("forked")
	for _, how := range []string{"write", "exec"} {
		t.Run(how, func(t *testing.T) {
			want, err := run(nil, time.Minute, nil, program, how)
			require.NoError(t, err, want)
			require.Equal(t, "0 ok\n", want)
			w := newWorld(t, broker.Thresholds{Calls: 40, Bytes: 1 << 30})
			got, err := run(w, time.Minute, nil, program, how)
			require.NoError(t, err, got)
			require.Equal(t, want, got)
			require.GreaterOrEqual(t, w.Counters().Promoted, uint64(2), "the answer was yes")
		})
	}
}

// TestManyProcesses checks a promoted pair that more processes hold than its ends name.
func TestManyProcesses(t *testing.T) { forked(t, "many") }

// TestSlowPeerOfInherited checks that unread bytes arrive at a program that inherits connections whose peer is slow and
// then sleeps.
func TestSlowPeerOfInherited(t *testing.T) { forked(t, "inherit") }

// TestChildrenThatEnd checks that what the library keeps of connections does not grow where children end without close().
func TestChildrenThatEnd(t *testing.T) { forked(t, "server") }

// TestGivenToChildren checks that connections that were promoted before their processes forked count no longer than
// some process has them.
func TestGivenToChildren(t *testing.T) {
	c := broker.Config{Thresholds: broker.Thresholds{Calls: 40, Bytes: 1 << 30}, Limits: broker.Limits{Conns: 1 + 6}}
	w := openWorld(t, shared.For(t).Library(), c)
	got, err := run(w, time.Minute, nil, shared.For(t).Program("forked"), "given")
	require.NoError(t, err, got)
	require.Equal(t, "0 ok\n", got)
	require.Equal(t, uint64(1+2*6), w.Counters().Promoted)
}

func forked(t *testing.T, how string) {
	t.Helper()
	program := shared.For(t).Program("forked")
	want, err := run(nil, time.Minute, nil, program, how)
	require.NoError(t, err, want)
	require.Equal(t, "0 ok\n", want)
	w := newWorld(t, broker.Thresholds{Calls: 40, Bytes: 1 << 30})
	got, err := run(w, time.Minute, nil, program, how)
	require.NoError(t, err, got)
	require.Equal(t, want, got)
	require.NotZero(t, w.Counters().Promoted)
}
