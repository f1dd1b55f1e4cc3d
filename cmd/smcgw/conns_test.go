package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
)

// An operator at an empty list is told where the connections are; a pipe is not.
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
			require.Contains(t, stderr.String(), "--native those left native")
		} else {
			require.Empty(t, stderr.String())
		}
	}
}
