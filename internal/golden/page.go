package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

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
