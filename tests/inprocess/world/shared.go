package world

import (
	"os/exec"
	"sync"
)

// Shared is a [Build] for all tests of a package, made when the first of them wants it.
type Shared struct {
	made  bool
	build func() (*Build, error)
}

// Share returns a build of the library and programs of inprocess/lib/test. Close it after the tests.
func Share(programs ...string) *Shared {
	s := &Shared{}
	s.build = sync.OnceValues(func() (*Build, error) {
		s.made = true
		return New(programs...)
	})
	return s
}

// test is a test that wants a build: [*testing.T], without package testing, because there is a program that has this
// package.
type test interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// For returns the build for a test, which is skipped where there is no compiler.
func (s *Shared) For(t test) *Build {
	t.Helper()
	if _, err := exec.LookPath(Compiler); err != nil {
		t.Skip("no " + Compiler)
	}
	b, err := s.build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Close removes what was built, if a test wanted it.
func (s *Shared) Close() error {
	if !s.made {
		return nil
	}
	b, err := s.build()
	if err != nil {
		return nil // nothing was left
	}
	return b.Close()
}
