package golden

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Document returns the text of docs/PROTOCOL.md.
func Document(t testing.TB) string {
	t.Helper()
	dir := "."
	for {
		text, err := os.ReadFile(filepath.Join(dir, "docs", "PROTOCOL.md"))
		if err == nil {
			return string(text)
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			t.Fatal("no docs/PROTOCOL.md in the module")
		}
		dir = filepath.Join("..", dir)
	}
}

// Vector returns the bytes of the vector of that name, which the document has once.
func Vector(t testing.TB, name string) []byte {
	t.Helper()
	doc := Document(t)
	before := "`" + name + "`:\n\n```\n"
	_, rest, ok := strings.Cut(doc, before)
	text, _, ended := strings.Cut(rest, "```\n")
	if !ok || !ended || strings.Count(doc, "`"+name+"`:") != 1 {
		t.Fatalf("docs/PROTOCOL.md does not have one vector %s", name)
	}
	return Unhex(t, text)
}

// Unhex reads bytes in the notation of the vectors.
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
