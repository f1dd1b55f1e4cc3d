package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestAdminIn: what is wrong elsewhere in a file does not matter; what is no path of a socket
// does not count.
func TestAdminIn(t *testing.T) {
	const own, usual = "/run/smcgw/gw1.sock", "/run/smcgw/smcgw.sock"
	at := filepath.Join(t.TempDir(), "smcgw.yaml")
	require.Equal(t, usual, AdminIn(at), "there is no file")
	require.Equal(t, usual, AdminIn(t.TempDir()), "a directory")
	for text, want := range map[string]string{
		"":                                    usual,
		"mode: enforce\n":                     usual,
		"mode: enforce\nadmin: " + own:        own,
		`{"admin": "` + own + `"}`:            own,
		"admin: " + own + "\nmdoe: off\n":     own,
		"mode: loud\nadmin: " + own:           own,
		"admin: gw1.sock\n":                   usual,
		"admin:\n":                            usual,
		"admin: [" + own + "]\n":              usual,
		"log: { admin: " + own + " }\n":       usual,
		"- admin: " + own + "\n":              usual,
		"admin: " + own + "\n\tmode: off":     usual,
		"admin: " + own + "\n---\n{}\n":       usual,
		"admin: /" + strings.Repeat("a", 103): usual,
		"admin: " + own + "\n" + strings.Repeat("#", maxConfigSize): usual,
	} {
		require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
		require.Equal(t, want, AdminIn(at), "%.60q", text)
	}
}

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
