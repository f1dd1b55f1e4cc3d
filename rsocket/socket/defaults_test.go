package socket

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket"
)

func defaultsDir(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

func TestReadDefaults(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  Defaults
	}{
		"nothing": {nil, Defaults{}},
		"all": {
			map[string]string{
				"polling_time": "25\n", "wake_up_interval": "100", "inline_default": "128", "sqsize_default": "512",
				"rqsize_default": "1000", "mem_default": "262144", "wmem_default": "65536", "iomap_size": "1000",
			},
			Defaults{
				PollingTime: 25 * time.Microsecond, WakeUpInterval: 100 * time.Millisecond, Inline: 128, SendQueue: 512,
				RecvQueue: 1000, RecvBuffer: 262144, SendBuffer: 65536, IOMaps: 768,
			},
		},
		"zeros": {
			map[string]string{
				"polling_time": "0", "wake_up_interval": "0", "inline_default": "0", "sqsize_default": "0",
				"rqsize_default": "0", "mem_default": "0", "wmem_default": "0", "iomap_size": "0",
			},
			Defaults{
				PollingTime: -time.Microsecond, WakeUpInterval: -time.Millisecond, Inline: -1, SendQueue: 16, RecvQueue: 16,
				RecvBuffer: 2, SendBuffer: 4096,
			},
		},
		"huge": {
			map[string]string{"sqsize_default": "99999999999999999999", "mem_default": "4294967296", "iomap_size": "70000"},
			Defaults{SendQueue: maxQueue, RecvBuffer: rsocket.MaxRing, IOMaps: 0x7f << 8},
		},
		"what follows the number": {map[string]string{"sqsize_default": " \t64 entries"}, Defaults{SendQueue: 64}},
		"other files":             {map[string]string{"preload_config": "* * * *"}, Defaults{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadDefaults(defaultsDir(t, tc.files))
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
	got, err := ReadDefaults(filepath.Join(t.TempDir(), "missing"))
	require.NoError(t, err)
	require.Zero(t, got)
}

// What is no number is said and does not keep the rest from being read.
func TestReadDefaultsErrors(t *testing.T) {
	dir := defaultsDir(t, map[string]string{"polling_time": "fast", "sqsize_default": "", "rqsize_default": "-5", "mem_default": "100"})
	got, err := ReadDefaults(dir)
	require.ErrorIs(t, err, errNumber)
	for _, name := range []string{"polling_time", "sqsize_default", "rqsize_default"} {
		require.ErrorContains(t, err, name)
	}
	require.Equal(t, Defaults{RecvBuffer: 100}, got)
}

// Defaults are what connections use, whatever they are.
func TestDefaultsApply(t *testing.T) {
	dir := defaultsDir(t, map[string]string{
		"polling_time": "0", "inline_default": "0", "sqsize_default": "0", "rqsize_default": "20", "mem_default": "5000",
		"wmem_default": "0", "iomap_size": "3",
	})
	defaults, err := ReadDefaults(dir)
	require.NoError(t, err)
	d := softDuo(t, [2]string{"127.0.0.1", "127.0.0.2"}, 1, StackConfig{Defaults: defaults})
	require.Zero(t, d.a.polling)
	a, b := d.pair(ConnConfig{})
	soon(t, a, b)
	cfg := a.ep.Config()
	require.Equal(t, []int{5000, 4096, 20, 16, 0, 3}, []int{cfg.RingSize, cfg.SendBuffer, cfg.Credits, cfg.SendDepth, cfg.Inline, cfg.IOMaps})
	require.NoError(t, converse2(a, b))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// converse2 is a conversation with an echo.
func converse2(a, b *Conn) error {
	go echo(b)
	return converse(a, 1, 5)
}

// TestNumberTruncated: what is left of a number is a number, and of none none.
func TestNumberTruncated(t *testing.T) {
	for _, s := range []string{"2147483647\n", "12x"} {
		for n := range len(s) {
			got, err := parseNumber([]byte(s[:n]))
			require.GreaterOrEqual(t, got, 0)
			require.True(t, err == nil || errors.Is(err, errNumber), "%q: %v", s[:n], err)
		}
	}
}

func FuzzParseNumber(f *testing.F) {
	for _, s := range []string{"", "0", " 12x", "99999999999", "-1", "\n7"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseNumber(b)
		if err != nil {
			require.ErrorIs(t, err, errNumber)
		}
		require.GreaterOrEqual(t, n, 0)
		require.LessOrEqual(t, n, 1<<31-1)
	})
}
