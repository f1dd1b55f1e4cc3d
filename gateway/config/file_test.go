package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
