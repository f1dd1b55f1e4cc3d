package scan

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Libc is the C library of a program.
type Libc string

// The libcs that the library is built for.
const (
	Glibc Libc = "glibc" // loaded by ld-linux
	Musl  Libc = "musl"  // loaded by ld-musl
)

// Obstacle is why a program cannot load the library, or makes no use of it: one of the reasons that show in its file.
type Obstacle Reason

var obstacles = map[Obstacle]string{
	Obstacle(Static):    "is statically linked",
	Obstacle(Setuid):    "changes its user, group or capabilities, so the loader loads nothing into it",
	Obstacle(GoRuntime): "is a Go program, which makes system calls of its own",
	Obstacle(OtherArch): "is of another machine",
	Obstacle(OtherLibc): "has neither glibc nor musl",
}

// Meaning completes "PROGRAM ...".
func (o Obstacle) Meaning() string { return obstacles[o] }

// Program is what is known of an executable file before it starts.
type Program struct {
	Path     string // of the file that is loaded; for a script, the interpreter
	Libc     Libc
	Obstacle Obstacle // empty: none
}

// FormatError reports a file that is neither a script nor an ELF program.
type FormatError struct {
	Path string
	Err  error
}

// Error returns the path and what is wrong with the file.
func (e *FormatError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap returns the underlying error.
func (e *FormatError) Unwrap() error { return e.Err }

// scriptsDeep is how many interpreters in a chain may be scripts, as in the kernel.
const scriptsDeep = 5

// Inspect examines a program, given as a path or as a name to look up in $PATH.
func Inspect(name string) (Program, error) {
	path, err := Resolve(name)
	if err != nil {
		return Program{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return Program{}, fmt.Errorf("program: %w", err)
	}
	p, err := inspect(path, f)
	return p, errors.Join(err, f.Close())
}

// Resolve returns the file that is loaded for a program: it looks up a name in $PATH, and follows a script to its
// interpreter.
func Resolve(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	for range scriptsDeep {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("program: %w", err)
		}
		head := make([]byte, 256)
		n, err := io.ReadFull(f, head)
		_ = f.Close()
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return "", &FormatError{path, err}
		}
		next, script := interpreter(head[:n])
		if !script {
			return path, nil
		}
		if path, err = exec.LookPath(next); err != nil {
			return "", err
		}
	}
	return "", &FormatError{path, unix.ELOOP}
}

// interpreter returns the program that runs a script; for env, the program that env runs.
func interpreter(head []byte) (name string, is bool) {
	line, is := bytes.CutPrefix(head, []byte("#!"))
	if !is {
		return "", false
	}
	line, _, _ = bytes.Cut(line, []byte("\n"))
	words := strings.Fields(string(line))
	if len(words) == 0 {
		return "", false
	}
	if filepath.Base(words[0]) == "env" {
		for _, w := range words[1:] {
			if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
				return w, true
			}
		}
	}
	return words[0], true
}

func ownMachine() elf.Machine { return machines[runtime.GOARCH] }

// machines maps GOARCH to the ELF machines that there are builds for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// libcOf returns the libc of a loader, or "" if it is neither glibc's nor musl's.
func libcOf(loader string) Libc {
	switch base := filepath.Base(loader); {
	case strings.HasPrefix(base, "ld-musl"):
		return Musl
	case strings.HasPrefix(base, "ld-linux"), strings.HasPrefix(base, "ld64"):
		return Glibc
	default:
		return ""
	}
}

func inspect(path string, f *os.File) (p Program, err error) {
	p.Path = path
	defer func() { // debug/elf panics on some files
		if r := recover(); r != nil {
			err = &FormatError{path, fmt.Errorf("%v", r)}
		}
	}()
	e, err := elf.NewFile(f)
	if err != nil {
		return p, &FormatError{path, err}
	}
	var loader string
	for _, s := range e.Progs {
		if s.Type == elf.PT_INTERP {
			b, err := io.ReadAll(io.LimitReader(s.Open(), 4096))
			if err != nil {
				return p, &FormatError{path, err}
			}
			loader = string(bytes.TrimRight(b, "\x00"))
		}
	}
	p.Libc = libcOf(loader)
	switch {
	case e.Machine != ownMachine():
		p.Obstacle = Obstacle(OtherArch)
	case e.Section(".go.buildinfo") != nil:
		p.Obstacle = Obstacle(GoRuntime)
	case loader == "":
		p.Obstacle = Obstacle(Static)
	case changesUser(f):
		p.Obstacle = Obstacle(Setuid)
	case p.Libc == "":
		p.Obstacle = Obstacle(OtherLibc)
	}
	return p, nil
}

// changesUser tells whether the file makes the kernel start the program in secure mode (AT_SECURE).
func changesUser(f *os.File) bool {
	st, err := f.Stat()
	if err != nil {
		return false
	}
	if st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return true
	}
	n, err := unix.Fgetxattr(int(f.Fd()), "security.capability", nil)
	return err == nil && n > 0
}
