package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// An operator at an empty list is told where the connections are; a pipe is not.
func TestHintOfConns(t *testing.T) {
	for _, c := range []struct {
		terminal int
		query    report.ConnQuery
		conns    []report.ConnInfo
		hints    bool
	}{
		{80, report.ConnQuery{}, nil, true},
		{0, report.ConnQuery{}, nil, false},
		{80, report.ConnQuery{Closed: true}, nil, false},
		{80, report.ConnQuery{All: true}, nil, false},
		{80, report.ConnQuery{}, []report.ConnInfo{{ID: 1}}, false},
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
