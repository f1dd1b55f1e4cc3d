package testnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ModuleRoot returns the root directory of the sources that contain the working directory.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("sources of this module: %w", os.ErrNotExist)
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// BuildLibrary builds the library that is preloaded into programs.
func BuildLibrary(file string) error {
	root, err := ModuleRoot()
	if err != nil {
		return err
	}
	source := filepath.Join(root, "inprocess", "lib")
	files, err := filepath.Glob(filepath.Join(source, "*.c"))
	if err != nil {
		return err
	}
	args := append([]string{
		"-std=gnu11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-ftls-model=initial-exec",
		"-include", filepath.Join(source, "glibc.h"), "-o", file,
	}, files...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the library: %w: %s", err, out)
	}
	return nil
}

// Library returns the library that is preloaded into programs: that of the Makefile, or one built for the test.
func Library(tb TB) string {
	tb.Helper()
	if file := made("libsmcgw.so"); file != "" {
		return file
	}
	Require(tb, "gcc")
	file := filepath.Join(temporary(tb), "libsmcgw.so")
	if err := BuildLibrary(file); err != nil {
		tb.Fatalf("%v", err)
	}
	return file
}

// temporary returns a directory for one test.
func temporary(tb TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "smcgw-built-")
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Program returns the smcgw that hosts run: that of the Makefile, or one built for the test.
func Program(tb TB) string {
	tb.Helper()
	if file := made("smcgw"); file != "" {
		return file
	}
	file := filepath.Join(temporary(tb), "smcgw")
	if out, err := exec.Command("go", "build", "-o", file, "github.com/smcgw/smcgw/cmd/smcgw").CombinedOutput(); err != nil {
		tb.Fatalf("smcgw: %v: %s", err, out)
	}
	return file
}

// made returns a file that the Makefile has built next to its program, or "".
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
