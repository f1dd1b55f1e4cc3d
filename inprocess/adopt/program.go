package adopt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/inprocess/scan"
)

// DefaultSocket is where a daemon serves the library.
const DefaultSocket = "/run/smcgw/in-process/broker.sock"

// Variables in the environment of a program with the library, which reads SMCGW_SOCKET and SMCGW_RUN.
const (
	EnvPreload = "LD_PRELOAD"
	EnvSocket  = "SMCGW_SOCKET" // path of the broker's socket
	EnvRun     = "SMCGW_RUN"    // decimal number of the run, which the library sends in HELLO
	// EnvLibrary names the library, instead of a search for it.
	EnvLibrary = "SMCGW_LIBRARY"
)

// file returns the file name of the library's build for a libc.
func file(l scan.Libc) string {
	if l == scan.Musl {
		return "libsmcgw-musl.so"
	}
	return Name
}

// LibraryError reports a library that was not found, or that the loader cannot be told of.
type LibraryError struct {
	Name string
	At   []string // where it was searched for
	Err  error    // or another problem
}

// Error returns where the library was searched for, or the other problem.
func (e *LibraryError) Error() string {
	if e.Err != nil {
		return e.Name + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s is not in %s", e.Name, strings.Join(e.At, ", "))
}

// Unwrap returns the other problem.
func (e *LibraryError) Unwrap() error { return e.Err }

// errSeparator reports a path with a character at which the loader ends a name.
var errSeparator = errors.New("the loader takes no path with a space or a colon")

// Library finds the build for a libc. named is the value of SMCGW_LIBRARY, own the path of this program.
func Library(l scan.Libc, named, own string) (string, error) {
	bin := filepath.Dir(own)
	at := []string{filepath.Join(bin, file(l)), filepath.Join(bin, "..", "lib", "smcgw", file(l)), filepath.Join("/usr/lib/smcgw", file(l))}
	if named != "" {
		at = []string{named}
	}
	for _, path := range at {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", &LibraryError{Name: path, Err: err}
		}
		if st, err := os.Stat(abs); err != nil || !st.Mode().IsRegular() {
			continue
		}
		if strings.ContainsAny(abs, " :\t\n") {
			return "", &LibraryError{Name: abs, Err: errSeparator}
		}
		return abs, nil
	}
	return "", &LibraryError{Name: file(l), At: at}
}

// Environment returns env with the library before anything else that is preloaded, and with the socket and the run.
func Environment(env []string, library, socket string, run uint64) []string {
	preload := library
	out := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		if name == EnvPreload && value != "" {
			preload = library + ":" + value
		}
		return name == EnvPreload || name == EnvSocket || name == EnvRun
	})
	return append(out, EnvPreload+"="+preload, EnvSocket+"="+socket, fmt.Sprintf("%s=%d", EnvRun, run))
}

// Installed is the directory in which packages install the library.
const Installed = "/usr/lib/smcgw"

// Name is the file name of the library for glibc.
const Name = "libsmcgw.so"

// Anywhere is the library's name for LD_PRELOAD, below its directory, for programs of either libc: glibc replaces the
// variable by the directory of its libraries, musl takes it literally, and make install puts a link at each name.
const Anywhere = "$LIB/" + Name
