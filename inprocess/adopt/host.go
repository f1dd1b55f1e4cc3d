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
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/scan"
)

// loaderFile lists libraries that glibc loads into every program (ld.so(8)). musl does not read it.
const loaderFile = "/etc/ld.so.preload"

// trialPatience bounds the run of a program that is started to try the library.
const trialPatience = 10 * time.Second

// hostLibrary returns the library's name in the host's list.
func (h *Installation) hostLibrary() string { return path.Join(h.Library, Name) }

// preloaded returns the host's list, and the libraries of ours in it: one may be of another
// installation, maybe removed.
func (h *Installation) preloaded() (text string, ours []string, err error) {
	b, err := os.ReadFile(path.Join(h.Root, loaderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	_, ours = without(string(b))
	return string(b), ours, nil
}

// HostEnabled reports whether every program of the host loads the library.
func (h *Installation) HostEnabled() (bool, error) {
	_, ours, err := h.preloaded()
	return ours != nil, err
}

// without removes the library, wherever it is, from a list of the loader: names between spaces, colons and line ends,
// comments after #. It removes a line that holds nothing else.
func without(text string) (rest string, found []string) {
	for line := range strings.Lines(text) {
		names, comment, commented := strings.Cut(line, "#")
		var kept []string
		here := false
		for _, n := range strings.FieldsFunc(names, func(r rune) bool { return strings.ContainsRune(" \t\n:", r) }) {
			if path.Base(n) == Name {
				here, found = true, append(found, n)
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
	}
	return rest, found
}

// EnableHost makes every program of the host load the library from its next start, after a trial. changed is false if
// it was enabled already. try starts programs with the library; nil means [Try].
func (h *Installation) EnableHost(ctx context.Context, try func(context.Context, string) error) (changed bool, err error) {
	if try == nil {
		try = Try
	}
	library := h.hostLibrary()
	_, ours, err := h.preloaded()
	if err != nil || slices.Equal(ours, []string{library}) {
		return false, err
	}
	if other := h.foreign(); other != "" {
		return false, fmt.Errorf("%w: it has programs (%s) that this library is not for, each of which would complain about it: enable units instead", ErrHost, other)
	}
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
	text, _, err := h.preloaded() // another program may have written it during the trial
	if err != nil {
		return false, err
	}
	text, _ = without(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if err := replace(path.Join(h.Root, loaderFile), []byte(text+library+"\n")); err != nil {
		return false, fmt.Errorf("%w: %w", ErrHost, err)
	}
	return true, nil
}

// foreign returns a file that shows that the host has programs which read its loader file, but cannot have the library:
// those of another architecture, or snaps, which have the host's /etc and a /usr of their own. "" means none.
func (h *Installation) foreign() string {
	own := map[string]string{"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}[runtime.GOARCH]
	for _, pattern := range []string{"/lib/ld-linux*.so.*", "/lib64/ld-linux*.so.*", "/libx32/ld-linux*.so.*", "/var/lib/snapd/snaps/*.snap"} {
		found, _ := filepath.Glob(path.Join(h.Root, pattern)) // the patterns are good
		for _, f := range found {
			if path.Base(f) != own {
				return path.Join("/", strings.TrimPrefix(f, h.Root))
			}
		}
	}
	return ""
}

// DisableHost undoes EnableHost and keeps the names of others. changed is false if there was nothing to undo.
func (h *Installation) DisableHost() (changed bool, err error) {
	text, ours, err := h.preloaded()
	if err != nil || ours == nil {
		return false, err
	}
	rest, _ := without(text)
	file := path.Join(h.Root, loaderFile)
	if strings.TrimSpace(rest) == "" {
		err = os.Remove(file)
	} else {
		err = replace(file, []byte(rest))
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrHost, err)
	}
	return true, nil
}

// safe refuses a library that anyone but root could replace, under its name or where links in it lead, since every
// program of root loads it.
func (h *Installation) safe(library string) error {
	root, err := filepath.EvalSymlinks(h.Root)
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrLibrary, library, err)
	}
	real, err := filepath.EvalSymlinks(path.Join(h.Root, library))
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrLibrary, library, err)
	}
	inside, err := filepath.Rel(root, real)
	if err != nil || !filepath.IsLocal(inside) {
		return fmt.Errorf("%w %s: it is a link to %s, outside of %s", ErrLibrary, library, real, h.Root)
	}
	for _, name := range []string{library, path.Join("/", inside)} {
		if err := h.safeName(library, name); err != nil {
			return err
		}
	}
	return nil
}

// safeName checks a file and the directories above it.
func (h *Installation) safeName(library, name string) error {
	for p := name; ; p = path.Dir(p) {
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
		case p == name && st.Mode&0o444 != 0o444:
			return fmt.Errorf("%w %s: not everyone may read it", ErrLibrary, library)
		case st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o111 != 0o111:
			return fmt.Errorf("%w %s: not everyone may search %s", ErrLibrary, library, p)
		case p == "/":
			return nil
		}
	}
}

// Try starts a program with the library. It requires that the library is loaded, that the loader prints nothing, and
// that the program exits as usual. All symbols are resolved at once.
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
	case !strings.Contains(stdout.String(), mappedAs(library)):
		return fmt.Errorf("%w %s: cat did not load it", ErrLibrary, library)
	default:
		return nil
	}
}

// mappedAs returns the name under which the kernel shows a mapped file.
func mappedAs(file string) string {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		return real
	}
	return file
}
