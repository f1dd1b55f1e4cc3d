package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/quicapp"
)

// binary is the smcgw under test, built once from this tree. built is its file, and stays so while a test runs it by
// a script.
var binary, built string

// faulty builds smcgw with the fault knobs of package faults, the first time a test wants it.
var faulty = sync.OnceValues(func() (string, error) {
	file := filepath.Join(filepath.Dir(built), "smcgw-faulty")
	return file, build(file, "-tags", "smcgw_faults")
})

func TestMain(m *testing.M) {
	if err := becomeSandboxed(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	apps.Init(slices.Concat(quicapp.Apps(), []apps.App{privateApp}, stormApps)...)
	dir, err := buildBinary()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := leak.Main(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// ProgramsVariable names the environment variable with the directory where the
// programs under test are, for machines without Go: smcgw, and for the tests
// that want them smcgw-faulty, libsmcgw.so, stream and smcgw-load.
const ProgramsVariable = "SMCGW_PROGRAMS"

// buildBinary builds smcgw into a directory that the caller removes, or copies the Makefile's binary there: a process
// without privileges may not reach one in another user's tree. SMCGW_RACE=1 builds it with the race detector.
func buildBinary() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "smcgw-e2e-"); err != nil {
		return "", err
	}
	programs := dir
	if given := os.Getenv(ProgramsVariable); given != "" {
		programs = given
	}
	built = filepath.Join(programs, "smcgw")
	binary = built
	if made := os.Getenv("SMCGW_BINARY"); made != "" && programs == dir && os.Getenv("SMCGW_RACE") == "" {
		if b, err := os.ReadFile(made); err == nil {
			return dir, os.WriteFile(binary, b, 0o755) //nolint:gosec // for other users, too
		}
	}
	return dir, build(binary)
}

// build builds smcgw, unless the programs are given by ProgramsVariable.
func build(file string, args ...string) error {
	if os.Getenv(ProgramsVariable) != "" {
		return nil
	}
	args = append([]string{"build", "-o", file}, args...)
	if os.Getenv("SMCGW_RACE") != "" {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/smcgw/smcgw/cmd/smcgw")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build smcgw: %w\n%s", err, out)
	}
	return nil
}
