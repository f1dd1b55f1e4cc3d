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

func FuzzParsePeers(f *testing.F) {
	for _, text := range []string{"10.0.0.1", "[fd00::1]", "10.0.0.0/8", "fd00::/129", "::ffff:10.0.0.1", "fe80::1%eth0", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePeers(text)
		if err == nil {
			require.True(t, p.IsValid())
			require.Equal(t, p, p.Masked())
			again, err := parsePeers(p.String())
			require.NoError(t, err)
			require.Equal(t, p, again)
		}
	})
}
