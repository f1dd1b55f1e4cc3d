package golden

import (
	"embed"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"testing"
)

//go:embed testdata/*.hex
var vectors embed.FS

// Vector returns the bytes of the vector with that name.
func Vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := vectors.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatalf("no vector %s: %v", name, err)
	}
	return Unhex(t, string(text))
}

// Names returns the names of the vectors with that prefix, in order.
func Names(t testing.TB, prefix string) (names []string) {
	t.Helper()
	files, err := vectors.ReadDir("testdata")
	if err != nil {
		t.Fatalf("vectors: %v", err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(path.Base(f.Name()), ".hex"); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Unhex parses bytes in the notation of the vectors.
func Unhex(t testing.TB, text string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(text) {
		data, _, _ := strings.Cut(line, ";")
		for f := range strings.FieldsSeq(data) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("bytes in hex: %v", err)
	}
	return b
}
