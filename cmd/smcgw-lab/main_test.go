package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// What the verbs do is tested where it is done.
func TestCommandLines(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		said   string
	}{
		"":                            {exitUsage, "no verb given"},
		"--help":                      {exitOK, "demo"},
		"dance":                       {exitUsage, `unknown command "dance"`},
		"demo now":                    {exitUsage, `unknown command "now"`},
		"demo --rounds many":          {exitUsage, `invalid argument "many"`},
		"demo --help":                 {exitOK, "network namespaces"},
		"bench now":                   {exitUsage, `unknown command "now"`},
		"bench --smcgw /no/such/file": {exitFailed, "make build makes it"},
		"bench --smcgw /proc/self/exe --other /no/such/file": {exitFailed, "/no/such/file"},
	} {
		var stdout, stderr strings.Builder
		require.Equal(t, want.status, run(t.Context(), &stdout, &stderr, strings.Fields(args)), "%s: %s", args, &stderr)
		require.Contains(t, stdout.String()+stderr.String(), want.said, args)
	}
}

// The gateway is the smcgw beside this program, or the one that is named.
func TestGateway(t *testing.T) {
	own, err := os.Executable()
	require.NoError(t, err)
	beside := filepath.Join(filepath.Dir(own), "smcgw")
	_, err = (&laboratory{}).gateway()
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, beside)

	require.NoError(t, os.WriteFile(beside, nil, 0o600))
	t.Cleanup(func() { require.NoError(t, os.Remove(beside)) })
	file, err := (&laboratory{}).gateway()
	require.NoError(t, err)
	require.Equal(t, beside, file)

	t.Chdir(filepath.Dir(own))
	file, err = (&laboratory{smcgw: "smcgw"}).gateway()
	require.NoError(t, err)
	require.Equal(t, beside, file)
}
