package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	goodKey  = "0123456789abcdef"
	otherKey = "another key of the gateways"
)

func keyFile(t *testing.T, mode os.FileMode, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "psk")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

func TestLoadKeys(t *testing.T) {
	keys, err := LoadKeys("")
	require.NoError(t, err)
	require.Empty(t, keys)
	for _, mode := range []os.FileMode{0o400, 0o600, 0o440, 0o640} {
		keys, err = LoadKeys(keyFile(t, mode, "# the new one\n"+goodKey+"\r\n\n  "+otherKey+"  "))
		require.NoError(t, err)
		require.Equal(t, [][]byte{[]byte(goodKey), []byte(otherKey)}, keys)
	}
	for name, c := range map[string]struct {
		mode os.FileMode
		text string
		want string
	}{
		"readable by others": {0o604, goodKey, "every user can read it"},
		"writable by others": {0o602, goodKey, "others than its owner can write it"},
		"writable by group":  {0o660, goodKey, "others than its owner can write it"},
		"empty":              {0o600, "\n# nothing\n", "no key in it"},
		"short":              {0o600, goodKey + "\nsecret-too-shor", "line 2: a key of 15 bytes; the least is 16"},
		"long":               {0o600, strings.Repeat("x", 513), "line 1: a key of 513 bytes; the most is 512"},
		"many":               {0o600, strings.Repeat(goodKey+"\n", 9), "line 9: more than 8 keys"},
		"large":              {0o600, strings.Repeat("#", 20<<10), "larger than"},
	} {
		_, err := LoadKeys(keyFile(t, c.mode, c.text))
		require.ErrorContains(t, err, c.want, name)
		require.NotContains(t, err.Error(), "secret", "the text of the file must not get into a log")
	}
	_, err = LoadKeys(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err = LoadKeys(pipe)
	require.ErrorContains(t, err, "not a regular file")
	_, err = LoadKeys("/nonexistent/psk")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestTruncatedKeys: a file that was cut has fewer keys, a shorter last one, or is
// refused; it never has another key.
func TestTruncatedKeys(t *testing.T) {
	whole := goodKey + "\n" + strings.Repeat("z", 2*minKeyLen)
	for i := range len(whole) {
		keys, err := parseKeys([]byte(whole[:i]))
		if i < minKeyLen || i > len(goodKey)+1 && i < len(goodKey)+1+minKeyLen {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, goodKey, string(keys[0]))
		if len(keys) > 1 {
			require.Equal(t, whole[len(goodKey)+1:i], string(keys[1]))
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(goodKey + "\n# comment\n" + otherKey))
	f.Add([]byte("\r\n\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseKeys(text)
		if err != nil {
			require.Empty(t, keys)
			return
		}
		require.NotEmpty(t, keys)
		require.LessOrEqual(t, len(keys), maxKeys)
		again, err := parseKeys(bytes.Join(keys, []byte("\n")))
		require.NoError(t, err)
		require.Equal(t, keys, again)
		for _, k := range keys {
			require.GreaterOrEqual(t, len(k), minKeyLen)
		}
	})
}
