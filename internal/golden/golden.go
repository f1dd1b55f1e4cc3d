package golden

import (
	"embed"
	"encoding/hex"
	"flag"
	"os"
	"path"
	"path/filepath"
	"reflect"
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

var update = flag.Bool("update", false, "write the golden files of testdata and the generated documents anew")

// Updating reports whether the flag -update asks to write generated files.
func Updating() bool { return *update }

// Page compares a document that is generated from the tables of the code with its committed text.
func Page(t testing.TB, name, text string) {
	t.Helper()
	compare(t, filepath.Join(root(t), filepath.FromSlash(name)), text, "%s is not what the code says: `make docs` writes it", name)
}

// File compares a text with a file in testdata of the package under test.
func File(t testing.TB, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	compare(t, file, text, "%s is not\n%s\n-update writes it", file, text)
}

// compare compares a text with that of a file. With -update it writes the file first.
func compare(t testing.TB, file, text, format string, args ...any) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != text {
		t.Fatalf(format, args...)
	}
}

// root returns the directory of the module.
func root(t testing.TB) string {
	t.Helper()
	for dir := "."; ; dir = filepath.Join("..", dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if len(dir) > 100 {
			t.Fatal("no go.mod above the test")
		}
	}
}

// RoundTrip checks what a fuzz test wants of a parser and its encoder for any bytes: if parse accepts b, it also
// accepts what encode makes of the value, and returns an equal value. The bytes need not be the same, because a parser
// may skip what it does not know, and accept more forms than one.
//
// It returns the value and what encode has made of it, so that the caller can check more, and false if parse refuses b.
func RoundTrip[T any](t testing.TB, b []byte, parse func([]byte) (T, error), encode func(T) []byte) (v T, encoded []byte, ok bool) {
	t.Helper()
	v, err := parse(b)
	if err != nil {
		return v, nil, false
	}
	encoded = encode(v)
	again, err := parse(encoded)
	if err != nil {
		t.Fatalf("% x\nis read as %+v\nand written as % x,\nwhich is refused: %v", b, v, encoded, err)
	}
	if !reflect.DeepEqual(v, again) {
		t.Fatalf("% x\nis read as %+v\nand written as % x,\nwhich is read as %+v", b, v, encoded, again)
	}
	return v, encoded, true
}
