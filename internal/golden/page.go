package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// Page compares a document that is made from the tables of the code with its
// committed text. With update it writes the document instead.
func Page(t testing.TB, name, text string, update bool) {
	t.Helper()
	file := filepath.Join(root(t), filepath.FromSlash(name))
	if update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != text {
		t.Fatalf("%s is not what the code says: `make docs` writes it", name)
	}
}

// root is the directory of the module.
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
