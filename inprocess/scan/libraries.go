package scan

import (
	"os"
	"path"
	"path/filepath"
	"strings"
)

// directories is where a loader searches for libraries.
type directories struct {
	arch   Arch
	always []string
}

// directories returns what the loader of a libc searches on this host. It leaves out LD_LIBRARY_PATH, which depends on
// the program's environment.
func (s *Scanner) directories(libc Libc) directories {
	d := directories{arch: s.arch}
	triplet, musl := "x86_64-linux-gnu", "x86_64"
	if s.arch == ARM64 {
		triplet, musl = "aarch64-linux-gnu", "aarch64"
	}
	if libc == Musl {
		text, err := os.ReadFile(path.Join(s.root, "/etc/ld-musl-"+musl+".path"))
		if err != nil {
			d.always = []string{"/lib", "/usr/local/lib", "/usr/lib"}
			return d
		}
		d.always = strings.FieldsFunc(string(text), func(r rune) bool { return r == ':' || r == '\n' })
		return d
	}
	d.always = append(s.configured("/etc/ld.so.conf", 0), "/lib/"+triplet, "/usr/lib/"+triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	return d
}

// configured returns the directories in ld.so.conf and in the files that it includes.
func (s *Scanner) configured(file string, depth int) (dirs []string) {
	const deepest, longest = 4, 1 << 20
	st, err := os.Stat(path.Join(s.root, file))
	if err != nil || !st.Mode().IsRegular() || st.Size() > longest || depth > deepest {
		return nil
	}
	text, err := os.ReadFile(path.Join(s.root, file))
	if err != nil {
		return nil
	}
	own, included := parseLoaderConfig(string(text))
	for _, pattern := range included {
		if !path.IsAbs(pattern) {
			pattern = path.Join(path.Dir(file), pattern)
		}
		matches, _ := filepath.Glob(path.Join(s.root, pattern)) // a bad pattern matches nothing
		for _, m := range matches {
			dirs = append(dirs, s.configured(strings.TrimPrefix(m, strings.TrimSuffix(s.root, "/")), depth+1)...)
		}
	}
	return append(dirs, own...)
}

// parseLoaderConfig parses ld.so.conf (ldconfig(8)).
func parseLoaderConfig(text string) (dirs, included []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n:,", r) })
		switch {
		case len(words) == 0:
		case words[0] == "include":
			included = append(included, words[1:]...)
		default:
			for _, w := range words {
				if path.IsAbs(w) {
					dirs = append(dirs, w)
				}
			}
		}
	}
	return dirs, included
}

// candidates returns the paths under which a library named by names, the object of the file from, may be found
// (ld.so(8)). program is the first object of all, whose DT_RPATH applies to everything that it loads.
func (d *directories) candidates(name, from string, names, program *object) []string {
	if strings.Contains(name, "/") {
		return []string{d.expand(name, from)}
	}
	var dirs []string
	split := func(list string) {
		for dir := range strings.SplitSeq(list, ":") {
			if dir = d.expand(dir, from); path.IsAbs(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	if names.runpath == "" {
		split(names.rpath)
		if program.runpath == "" {
			split(program.rpath)
		}
	}
	split(names.runpath)
	var list []string
	for _, dir := range append(dirs, d.always...) {
		list = append(list, path.Join(dir, name))
	}
	return list
}

// expand replaces the loader's variables in a directory.
func (d *directories) expand(dir, from string) string {
	lib, platform := "lib/x86_64-linux-gnu", "x86_64"
	if d.arch == ARM64 {
		lib, platform = "lib/aarch64-linux-gnu", "aarch64"
	}
	origin := path.Dir(from)
	return strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin, "$LIB", lib, "${LIB}", lib, "$PLATFORM", platform, "${PLATFORM}", platform).Replace(dir)
}
