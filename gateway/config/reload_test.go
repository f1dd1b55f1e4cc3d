package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestCheckReplace: a gateway finds the one from which it takes over at its own admin socket;
// all else may be another.
func TestCheckReplace(t *testing.T) {
	at := Config{}.WithDefaults()
	next := Config{
		Mode: report.ModeEnforce, Devices: []string{"eth7"}, StateDir: "/var/other", ShmDir: "/run/other", Metrics: Metrics{Listen: "[::1]:9999"},
		Carriers: []report.DeviceKind{report.DeviceSoft},
	}.WithDefaults()
	require.NoError(t, at.CheckReplace(next))
	err := at.CheckReload(next, true)
	require.ErrorIs(t, err, ErrRestart)
	require.NotErrorIs(t, err, ErrStop)

	next.Admin = "/run/smcgw/other.sock"
	require.ErrorIs(t, at.CheckReplace(next), ErrStop)
	err = at.CheckReload(next, true)
	require.ErrorIs(t, err, ErrStop)
	require.ErrorIs(t, err, ErrRestart)
	require.ErrorContains(t, err, "admin: takes a stop and a start")
	require.NotContains(t, err.Error(), "admin: takes a restart")
	next = at
	next.Admin = "/run/smcgw/other.sock"
	require.NotErrorIs(t, at.CheckReload(next, true), ErrRestart)
}

// TestReloadOfWhatCheckPrints: the effective configuration is the same one, with lists that
// are empty where the file has none.
func TestReloadOfWhatCheckPrints(t *testing.T) {
	for _, text := range []string{"", "carriers: []\n", "devices: [eth0]\nshards: 1\npolicy: [{name: a, match: {ports: [80]}, action: accelerate}]\n"} {
		f, err := parseConfig("f", []byte(text), testUsers)
		require.NoError(t, err)
		printed, err := f.YAML()
		require.NoError(t, err)
		again, err := parseConfig("f", printed, testUsers)
		require.NoError(t, err)
		require.NoError(t, f.Config.CheckReload(again.Config, true), "%s", printed)
		require.NoError(t, again.Config.CheckReload(f.Config, true), "%s", printed)
	}
	none, err := parseConfig("f", []byte("carriers: []\n"), testUsers)
	require.NoError(t, err)
	require.ErrorContains(t, Config{}.WithDefaults().CheckReload(none.Config, true), "carriers: takes a restart")
}
