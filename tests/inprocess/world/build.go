package world

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/smcgw/smcgw/lab/testnet"
)

// Compiler builds everything here.
const Compiler = "gcc"

// Sanitizer is a checker that gcc builds into a program.
type Sanitizer string

// The sanitizers.
const (
	Addresses Sanitizer = "address,undefined"
	Threads   Sanitizer = "thread"
)

// Build is a directory with the library and the programs of its tests.
type Build struct {
	dir, sources string

	mu        sync.Mutex // guards sanitized
	sanitized map[string]error
}

// New builds the library and programs of inprocess/lib/test, from the sources around the working directory.
func New(programs ...string) (_ *Build, err error) {
	root, err := testnet.ModuleRoot()
	if err != nil {
		return nil, err
	}
	b := &Build{sources: filepath.Join(root, "inprocess", "lib"), sanitized: map[string]error{}}
	if b.dir, err = os.MkdirTemp("", "smcgw-lib"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	errs := make([]error, 1+len(programs))
	var all sync.WaitGroup
	all.Go(func() { errs[0] = testnet.BuildLibrary(b.Library()) })
	for i, name := range programs {
		all.Go(func() { errs[1+i] = b.compile([]string{"-O1", "-o", b.Program(name), b.test(name)}) })
	}
	all.Wait()
	if err = errors.Join(errs...); err != nil {
		return nil, err
	}
	return b, nil
}

// Close removes what was built.
func (b *Build) Close() error { return os.RemoveAll(b.dir) }

// Library returns the path of the library.
func (b *Build) Library() string { return filepath.Join(b.dir, "libsmcgw.so") }

// Program returns the path of one of the programs of inprocess/lib/test.
func (b *Build) Program(name string) string { return filepath.Join(b.dir, name) }

// Sanitized builds a program with the library linked in, both with a sanitizer, and returns its path. A preloaded
// library would come before the sanitizer's functions, which then would not see the program's calls; linked in, it
// calls them.
func (b *Build) Sanitized(with Sanitizer, name string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	path := b.Program(name) + "-" + string(with)
	err, made := b.sanitized[path]
	if !made {
		args := []string{"-O1", "-fno-omit-frame-pointer", "-fsanitize=" + string(with), "-o", path}
		if with == Threads { // it knows no fences, each of which is between atomic words; together.c: one mapping for both ends
			args = append(args, "-Wno-tsan", "-Wl,--wrap=mmap,--wrap=munmap", b.test("together"))
		} else {
			args = append(args, "-fno-sanitize-recover=undefined")
		}
		var sources []string
		if sources, err = filepath.Glob(filepath.Join(b.sources, "*.c")); err == nil {
			err = b.compile(append(append(args, b.test(name)), sources...))
		}
		b.sanitized[path] = err
	}
	return path, err
}

// Alone builds a program with a sanitizer, without the library, and returns its path.
func (b *Build) Alone(with Sanitizer, name string) (string, error) {
	path := b.Program(name) + "-" + string(with) + "-alone"
	return path, b.compile([]string{"-O1", "-fsanitize=" + string(with), "-o", path, b.test(name)})
}

func (b *Build) test(name string) string { return filepath.Join(b.sources, "test", name+".c") }

// compileError is a failed build with the compiler's output.
type compileError struct {
	said string
	err  error
}

func (e *compileError) Error() string { return e.err.Error() + "\n" + e.said }
func (e *compileError) Unwrap() error { return e.err }

func (b *Build) compile(args []string) error {
	common := []string{"-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}
	out, err := exec.Command(Compiler, append(common, args...)...).CombinedOutput()
	if err != nil {
		return &compileError{string(out), err}
	}
	return nil
}
