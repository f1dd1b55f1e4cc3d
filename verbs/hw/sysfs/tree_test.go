package sysfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// Trees are written one attribute a line, "path = value" or "path -> target"; \n
// separates the lines of a value. A part of what the kernel lists, without what is
// not read.

func trees(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.tree")
	require.NoError(t, err)
	require.Len(t, names, 6)
	return names
}

func loadTree(t testing.TB, file string) fstest.MapFS {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	m := fstest.MapFS{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if name, to, ok := strings.Cut(line, " -> "); ok {
			m[name] = &fstest.MapFile{Mode: fs.ModeSymlink | 0o777, Data: []byte(to)}
			continue
		}
		name, value, ok := strings.Cut(line, " =")
		require.True(t, ok, line)
		value = strings.ReplaceAll(strings.TrimPrefix(value, " "), `\n`, "\n")
		m[name] = &fstest.MapFile{Mode: 0o444, Data: []byte(value + "\n")}
	}
	return m
}

// kernelOf is a kernel that has a tree, with everything else as usual.
func kernelOf(root fs.FS) *kernel {
	return &kernel{
		root: root, access: func(string) error { return nil }, priorities: func(string) *Priorities { return nil },
		namespaces: func() string { return "shared" }, memlock: func() int64 { return -1 },
		use: func() map[string]map[string]uint64 { return nil },
	}
}
