package adopt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/scan"
)

// loaderFile lists libraries that glibc loads into every program (ld.so(8)). musl does not
// read it.
const loaderFile = "/etc/ld.so.preload"

// trialPatience bounds a program that is started with the library.
const trialPatience = 10 * time.Second

// hostLibrary is the library in the host's list.
func (h *Installation) hostLibrary() string { return path.Join(h.Library, Name) }

// preloaded is what the list says, and whether the library is in it.
func (h *Installation) preloaded() (text string, is bool, err error) {
	b, err := os.ReadFile(path.Join(h.Root, loaderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	_, is = without(string(b), h.hostLibrary())
	return string(b), is, nil
}

// HostEnabled tells whether every program of the host loads the library.
func (h *Installation) HostEnabled() (bool, error) {
	_, is, err := h.preloaded()
	return is, err
}

// without removes a library from a list of the loader's: names between spaces, colons and
// lines, comments after #. A line that has nothing else goes with it.
func without(text, library string) (rest string, found bool) {
	for line := range strings.Lines(text) {
		names, comment, commented := strings.Cut(line, "#")
		var kept []string
		here := false
		for _, n := range strings.FieldsFunc(names, func(r rune) bool { return strings.ContainsRune(" \t\n:", r) }) {
			if n == library {
				here = true
			} else {
				kept = append(kept, n)
			}
		}
		switch {
		case !here:
			rest += line
			continue
		case len(kept) == 0 && !commented:
		case commented:
			rest += strings.TrimLeft(strings.Join(kept, " ")+" #"+comment, " ")
		default:
			rest += strings.Join(kept, " ") + "\n"
		}
		found = true
	}
	return rest, found
}

// EnableHost has every program of the host load the library from its next start, after it
// was tried. changed: it was not so. try starts programs with the library; nil: [Try].
func (h *Installation) EnableHost(ctx context.Context, try func(context.Context, string) error) (changed bool, err error) {
	if try == nil {
		try = Try
	}
	text, is, err := h.preloaded()
	if err != nil || is {
		return false, err
	}
	if found, _ := filepath.Glob(path.Join(h.Root, "/lib/ld-linux.so.2")); found != nil { // the pattern is good
		return false, fmt.Errorf("%w: it has programs of 32 bits (/lib/ld-linux.so.2), each of which would complain about a library of 64: enable units instead", ErrHost)
	}
	library := h.hostLibrary()
	if err := h.safe(library); err != nil {
		return false, err
	}
	r, err := scan.New().Program(path.Join(h.Root, library))
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrLibrary, err)
	}
	for _, reason := range r.Reasons {
		if reason == scan.NotELF || reason == scan.Malformed || reason == scan.OtherArch || reason == scan.Missing {
			return false, fmt.Errorf("%w %s: %s", ErrLibrary, library, reason.Meaning())
		}
	}
	if err := try(ctx, path.Join(h.Root, library)); err != nil {
		return false, err
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if err := replace(path.Join(h.Root, loaderFile), []byte(text+library+"\n"), 0o644); err != nil {
		return false, fmt.Errorf("%w: %w", ErrHost, err)
	}
	return true, nil
}

// DisableHost undoes EnableHost and leaves the names of others. changed: there was something
// to undo.
func (h *Installation) DisableHost() (changed bool, err error) {
	text, is, err := h.preloaded()
	if err != nil || !is {
		return false, err
	}
	rest, _ := without(text, h.hostLibrary())
	file := path.Join(h.Root, loaderFile)
	if strings.TrimSpace(rest) == "" {
		err = os.Remove(file)
	} else {
		err = replace(file, []byte(rest), 0o644)
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrHost, err)
	}
	return true, nil
}

// safe refuses a library that others than root could exchange, as every program of root
// loads it.
func (h *Installation) safe(library string) error {
	for p := library; ; p = path.Dir(p) {
		var st unix.Stat_t
		if err := unix.Lstat(path.Join(h.Root, p), &st); err != nil {
			return fmt.Errorf("%w %s: %w", ErrLibrary, library, err)
		}
		const others = 0o022
		switch {
		case st.Uid != uint32(os.Geteuid()) && st.Uid != 0:
			return fmt.Errorf("%w %s: %s belongs to user %d", ErrLibrary, library, p, st.Uid)
		case st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode&others != 0:
			return fmt.Errorf("%w %s: others than its owner may write %s", ErrLibrary, library, p)
		case p == library && st.Mode&0o444 != 0o444:
			return fmt.Errorf("%w %s: not everyone may read it", ErrLibrary, library)
		case p == "/":
			return nil
		}
	}
}

// Try starts a program with the library, and wants it loaded, no word of the loader, and the
// program's own end. All symbols are resolved at once.
func Try(ctx context.Context, library string) error {
	ctx, cancel := context.WithTimeout(ctx, trialPatience)
	defer cancel()
	c := exec.CommandContext(ctx, "/bin/cat", "/proc/self/maps")
	c.Env = []string{"LD_PRELOAD=" + library, "LD_BIND_NOW=1", "PATH=/usr/bin:/bin", "LC_ALL=C"}
	c.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	switch said := strings.TrimSpace(stderr.String()); {
	case said != "":
		return fmt.Errorf("%w %s: tried with cat: %s", ErrLibrary, library, said)
	case err != nil:
		return fmt.Errorf("%w %s: tried with cat: %w", ErrLibrary, library, err)
	case !strings.Contains(stdout.String(), library):
		return fmt.Errorf("%w %s: cat did not load it", ErrLibrary, library)
	default:
		return nil
	}
}
