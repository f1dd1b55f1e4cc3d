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

// Those that there is a build for.
const (
	Glibc Libc = "glibc" // ld-linux loads it
	Musl  Libc = "musl"  // ld-musl does
)

// Obstacle is why a program does not have the library, or makes no use of it: one of the reasons that its file shows.
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

// Program is what there is to know about an executable file before it is started.
type Program struct {
	Path     string // of the file that is loaded: a script's interpreter
	Libc     Libc
	Obstacle Obstacle // empty: none
}

// FormatError is a file that is neither a script nor an ELF program.
type FormatError struct {
	Path string
	Err  error
}

// Error says what is wrong with it.
func (e *FormatError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }

// Unwrap is the error of the file.
func (e *FormatError) Unwrap() error { return e.Err }

// scriptsDeep is how many interpreters may be scripts themselves, as in the kernel.
const scriptsDeep = 5

// Inspect looks at a program, which is a path, or a name that is looked up in $PATH.
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

// Resolve finds the file that is loaded for a program: that of a name in $PATH, and a script's
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

// interpreter is the program that runs a script; env's argument if that is env.
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

// machines of this build, by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// libcOf is the libc of a loader; empty: neither glibc nor musl.
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
	defer func() { // debug/elf answers some files with a panic
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

// changesUser tells whether the kernel asks the loader for care (AT_SECURE), as far as the file is concerned.
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
