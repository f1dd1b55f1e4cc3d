package launch

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Libc is the C library of a program.
type Libc string

const (
	Glibc Libc = "glibc"
	Musl  Libc = "musl"
)

// Obstacle is why a program does not have the library, or makes no use of it.
type Obstacle string

const (
	Static      Obstacle = "static"       // it has no loader
	SetUserID   Obstacle = "set_user_id"  // the loader ignores LD_PRELOAD: set-user-ID, set-group-ID or file capabilities
	Go          Obstacle = "go"           // Go's runtime makes system calls of its own, libc or not
	Foreign     Obstacle = "foreign"      // of another machine
	UnknownLibc Obstacle = "unknown_libc" // neither glibc nor musl
)

var obstacles = map[Obstacle]string{
	Static:      "is statically linked",
	SetUserID:   "changes its user, group or capabilities, so the loader loads nothing into it",
	Go:          "is a Go program, which makes system calls of its own",
	Foreign:     "is of another machine",
	UnknownLibc: "has neither glibc nor musl",
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
	path, err := exec.LookPath(name)
	if err != nil {
		return Program{}, err
	}
	for range scriptsDeep {
		f, err := os.Open(path)
		if err != nil {
			return Program{}, fmt.Errorf("program: %w", err)
		}
		head := make([]byte, 256)
		n, err := io.ReadFull(f, head)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return Program{}, errors.Join(&FormatError{path, err}, f.Close())
		}
		next, script := interpreter(head[:n])
		if !script {
			p, err := inspect(path, f)
			return p, errors.Join(err, f.Close())
		}
		_ = f.Close()
		if path, err = exec.LookPath(next); err != nil {
			return Program{}, err
		}
	}
	return Program{}, &FormatError{path, unix.ELOOP}
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

// machines of this build, by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

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
			loader = filepath.Base(string(bytes.TrimRight(b, "\x00")))
		}
	}
	switch {
	case strings.HasPrefix(loader, "ld-musl"):
		p.Libc = Musl
	case strings.HasPrefix(loader, "ld-linux"), strings.HasPrefix(loader, "ld64"):
		p.Libc = Glibc
	}
	switch {
	case e.Machine != ownMachine():
		p.Obstacle = Foreign
	case e.Section(".go.buildinfo") != nil:
		p.Obstacle = Go
	case loader == "":
		p.Obstacle = Static
	case changesUser(f):
		p.Obstacle = SetUserID
	case p.Libc == "":
		p.Obstacle = UnknownLibc
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
