package testnet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Library returns the library that programs are preloaded with: that of the Makefile, or one built for the test.
func Library(tb TB) string {
	tb.Helper()
	if file := made("libsmcgw.so"); file != "" {
		return file
	}
	Require(tb, "gcc")
	dir, err := os.MkdirTemp("", "smcgw-library-")
	if err != nil {
		tb.Fatalf("library: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		tb.Fatalf("library: %v", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "inprocess", "lib")
	files, err := filepath.Glob(filepath.Join(source, "*.c"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("library: no sources in %s: %v", source, err)
	}
	file := filepath.Join(dir, "libsmcgw.so")
	args := append([]string{
		"-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-include", filepath.Join(source, "glibc.h"), "-o", file,
	}, files...)
	if out, err := exec.Command("gcc", append(args, "-ldl")...).CombinedOutput(); err != nil {
		tb.Fatalf("library: %v: %s", err, out)
	}
	return file
}

// Program returns the smcgw that hosts run: that of the Makefile, or one built for the test.
func Program(tb TB) string {
	tb.Helper()
	if file := made("smcgw"); file != "" {
		return file
	}
	dir, err := os.MkdirTemp("", "smcgw-program-")
	if err != nil {
		tb.Fatalf("smcgw: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "smcgw")
	if out, err := exec.Command("go", "build", "-o", file, "github.com/smcgw/smcgw/cmd/smcgw").CombinedOutput(); err != nil {
		tb.Fatalf("smcgw: %v: %s", err, out)
	}
	return file
}

// made is a file that the Makefile has made and names by its program, or "".
func made(name string) string {
	program := os.Getenv("SMCGW_BINARY")
	if program == "" {
		return ""
	}
	file := filepath.Join(filepath.Dir(program), name)
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}
