package golden

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
