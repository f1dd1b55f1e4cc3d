package golden

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
)

// TestVectorsAreNamed: the parts of the protocol name every vector once, and no
// other.
func TestVectorsAreNamed(t *testing.T) {
	parts, err := filepath.Glob(filepath.Join(root(t), "docs", "protocol", "*.md"))
	require.NoError(t, err)
	require.Len(t, parts, 5)
	name := regexp.MustCompile("`([a-z0-9-]+)`")
	var named []string
	for _, part := range parts {
		text, err := os.ReadFile(part)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "Vector") {
				continue
			}
			for _, m := range name.FindAllStringSubmatch(line, -1) {
				named = append(named, m[1])
			}
		}
	}
	slices.Sort(named)
	require.Equal(t, Names(t, ""), named)
}

func TestVectorsAreBytes(t *testing.T) {
	for _, name := range Names(t, "") {
		require.NotEmpty(t, Vector(t, name), name)
	}
}

// failing keeps what a test has failed with first.
type failing struct {
	testing.TB
	with string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	if f.with == "" {
		f.with = fmt.Sprintf(format, args...)
	}
}

// TestRoundTrip: what is lost or refused on the way is found, and what is skipped may be.
func TestRoundTrip(t *testing.T) {
	short := errors.New("short")
	parse := func(b []byte) ([2]byte, error) {
		if len(b) < 2 {
			return [2]byte{}, short
		}
		return [2]byte(b), nil
	}
	var f failing
	v, encoded, ok := RoundTrip(&f, []byte{1, 2, 3}, parse, func(v [2]byte) []byte { return v[:] })
	require.True(t, ok)
	require.Equal(t, [2]byte{1, 2}, v)
	require.Equal(t, []byte{1, 2}, encoded)
	_, _, ok = RoundTrip(&f, []byte{1}, parse, func([2]byte) []byte { panic("nothing to encode") })
	require.False(t, ok)
	require.Empty(t, f.with)

	RoundTrip(&f, []byte{1, 2}, parse, func(v [2]byte) []byte { return []byte{v[0], 0} })
	require.Contains(t, f.with, "which is read as [1 0]")
	f.with = ""
	RoundTrip(&f, []byte{1, 2}, parse, func(v [2]byte) []byte { return v[:1] })
	require.Contains(t, f.with, "which is refused: short")
}

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
