package main

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

// Someone who looks at an empty list is told where the connections are; a pipe is not.
func TestHintOfConns(t *testing.T) {
	for _, c := range []struct {
		terminal int
		query    admin.ConnQuery
		conns    []admin.ConnInfo
		hints    bool
	}{
		{80, admin.ConnQuery{}, nil, true},
		{0, admin.ConnQuery{}, nil, false},
		{80, admin.ConnQuery{Closed: true}, nil, false},
		{80, admin.ConnQuery{All: true}, nil, false},
		{80, admin.ConnQuery{}, []admin.ConnInfo{{ID: 1}}, false},
	} {
		e, stdout, stderr := testEnv()
		e.terminal = func(io.Writer) int { return c.terminal }
		f := connsFlags{query: c.query}
		require.NoError(t, f.hint(e, admin.ConnList{Conns: c.conns}))
		require.Empty(t, stdout.String())
		if c.hints {
			require.Contains(t, stderr.String(), "--native those that stayed native")
		} else {
			require.Empty(t, stderr.String())
		}
	}
}

func TestTimeOfAnEnd(t *testing.T) {
	now := time.Date(2026, 11, 22, 15, 0, 0, 0, time.Local)
	require.Equal(t, "14:59:01", atCell(now.Add(-59*time.Second), now))
	require.Equal(t, "2026-11-20", atCell(now.Add(-48*time.Hour), now))
	require.Empty(t, atCell(time.Time{}, now))
}
