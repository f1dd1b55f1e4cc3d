package adopt

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// DropIn is the file name of our drop-in.
const DropIn = "50-smcgw-in-process.conf"

// etc is where the owner of the host puts drop-ins.
const etc = "/etc/systemd/system"

var (
	// ErrUnit reports a unit that cannot be made to load the library.
	ErrUnit = errors.New("unit")
	// ErrHost reports a host that cannot be made to load it.
	ErrHost = errors.New("host")
	// ErrLibrary reports a library that not all programs could load.
	ErrLibrary = errors.New("library")
)

// Installation says where files are written.
type Installation struct {
	// Root is the root of the host's files: "/", or that of an image.
	Root string
	// Library is the directory of the library, as the host's programs see it.
	Library string
}

// unitDirectories returns the directories of units; the first that has a unit counts (systemd.unit(5)).
func unitDirectories() []string {
	return []string{
		"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient", "/run/systemd/generator.early", etc, "/run/systemd/system",
		"/run/systemd/generator", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
	}
}

// Unit is a unit of the host, with what its drop-ins say.
type Unit struct {
	// Name is the unit's own name, even if an alias was asked for.
	Name string
	// settings are the values of [Service], by name and in the order of the files, including what our drop-in adds.
	settings map[string][]string
	// preload is what our drop-in adds, and emptied the file read after it that removes it again. files are those of
	// EnvironmentFile= that set LD_PRELOAD.
	preload, emptied string
	files            []string
}

// unitName completes a name as systemctl does, and refuses one that is not a service's.
func unitName(name string) (string, error) {
	if !strings.Contains(name, ".") {
		name += ".service"
	}
	stem, isService := strings.CutSuffix(name, ".service")
	if !isService || stem == "" || stem == "." || strings.HasPrefix(stem, "@") || len(name) > 255 ||
		strings.Trim(stem, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ:-_.\\@") != "" {
		return "", fmt.Errorf("%w %q: not the name of a service", ErrUnit, name)
	}
	return name, nil
}

// template returns the name of a unit's template, or "" if it is not an instance.
func template(name string) string {
	before, after, found := strings.Cut(name, "@")
	if !found || after == ".service" {
		return ""
	}
	return before + "@.service"
}

// Unit finds a unit by its name.
func (h *Installation) Unit(name string) (*Unit, error) {
	name, err := unitName(name)
	if err != nil {
		return nil, err
	}
	file, own, err := h.unitFile(name)
	if err != nil {
		return nil, err
	}
	u := &Unit{Name: own, settings: map[string][]string{}, preload: h.assignment()}
	files := append([]string{file}, h.dropIns(own)...)
	for _, f := range files {
		text := []byte(h.dropInText())
		if path.Base(f) != DropIn {
			if text, err = os.ReadFile(path.Join(h.Root, f)); err != nil {
				return nil, fmt.Errorf("%w %s: %w", ErrUnit, name, err)
			}
		}
		had := u.preloads()
		parseUnit(text, u.settings)
		if had && !u.preloads() {
			u.emptied = f
		}
	}
	u.files = h.preloadingFiles(u.settings["EnvironmentFile"])
	return u, nil
}

// preloads tells whether the settings have what our drop-in adds.
func (u *Unit) preloads() bool { return slices.Contains(u.settings["Environment"], u.preload) }

// preloadingFiles returns the files of EnvironmentFile= that set LD_PRELOAD; they override Environment=.
func (h *Installation) preloadingFiles(settings []string) (list []string) {
	for _, v := range settings {
		found, _ := filepath.Glob(path.Join(h.Root, strings.TrimPrefix(v, "-"))) // a bad pattern matches nothing
		for _, f := range found {
			text, _ := os.ReadFile(f) // a missing file sets nothing
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(strings.TrimSpace(line), EnvPreload+"=") {
					list = append(list, path.Join("/", strings.TrimPrefix(f, path.Clean(h.Root))))
					break
				}
			}
		}
	}
	return list
}

// unitFile returns the file of a unit, and the unit's own name.
func (h *Installation) unitFile(name string) (file, own string, err error) {
	own = name
	const aliases = 8
	for range aliases {
	search:
		for _, candidate := range []string{own, template(own)} {
			if candidate == "" {
				continue
			}
			for _, dir := range unitDirectories() {
				file = path.Join(dir, candidate)
				st, err := os.Lstat(path.Join(h.Root, file))
				if err != nil {
					continue
				}
				if st.Mode().IsRegular() {
					if st.Size() == 0 {
						return "", "", fmt.Errorf("%w %s: it is masked", ErrUnit, own)
					}
					return file, own, nil
				}
				target, err := os.Readlink(path.Join(h.Root, file))
				if err != nil {
					return "", "", fmt.Errorf("%w %s: %w", ErrUnit, own, err)
				}
				if target == "/dev/null" {
					return "", "", fmt.Errorf("%w %s: it is masked", ErrUnit, own)
				}
				if base := path.Base(target); base != candidate && strings.HasSuffix(base, ".service") && template(own) == "" {
					own = base // an alias
					break search
				}
				if !path.IsAbs(target) {
					target = path.Join(dir, target)
				}
				return target, own, nil // a unit linked from elsewhere
			}
			if candidate == own && template(own) == "" {
				return "", "", fmt.Errorf("%w %s: there is none of this name", ErrUnit, name)
			}
			if candidate != own {
				return "", "", fmt.Errorf("%w %s: there is none of this name, and no %s", ErrUnit, name, candidate)
			}
		}
	}
	return "", "", fmt.Errorf("%w %s: its names lead in a circle", ErrUnit, name)
}

// dropIns lists the drop-ins of a unit in the order in which they are read, ours included even before it is written.
// They are sorted by file name; of several with one name only the first found counts (systemd.unit(5)).
func (h *Installation) dropIns(name string) (list []string) {
	files := map[string]string{DropIn: dropInFile(name)}
	look := func(dir string) {
		entries, _ := os.ReadDir(path.Join(h.Root, dir))
		for _, e := range entries {
			if base := e.Name(); files[base] == "" && strings.HasSuffix(base, ".conf") {
				files[base] = path.Join(dir, base)
			}
		}
	}
	for _, dir := range unitDirectories() {
		for _, unit := range familyOf(name) {
			look(path.Join(dir, unit+".d"))
		}
	}
	for _, dir := range unitDirectories() {
		look(path.Join(dir, "service.d"))
	}
	for _, base := range slices.Sorted(maps.Keys(files)) {
		list = append(list, files[base])
	}
	return list
}

// familyOf returns the names whose drop-ins apply to a unit: its own, its template's, and
// its prefixes that end in a dash.
func familyOf(name string) []string {
	list := []string{name}
	if t := template(name); t != "" {
		list = append(list, t)
	}
	prefix, _, _ := strings.Cut(strings.TrimSuffix(name, ".service"), "@")
	for at := strings.LastIndexByte(prefix, '-'); at >= 0; at = strings.LastIndexByte(prefix[:at], '-') {
		list = append(list, prefix[:at+1]+".service")
	}
	return list
}

// parseUnit adds the settings of a file's section [Service] (systemd.syntax(7)).
func parseUnit(text []byte, settings map[string][]string) {
	service := false
	lines := bufio.NewScanner(bytes.NewReader(bytes.ReplaceAll(text, []byte("\\\n"), []byte(" "))))
	lines.Buffer(nil, 1<<20) // LONG_LINE_MAX
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "", line[0] == '#', line[0] == ';':
		case line[0] == '[':
			service = line == "[Service]"
		case service:
			name, value, is := strings.Cut(line, "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			switch {
			case !is:
			case value == "":
				delete(settings, name)
			default:
				settings[name] = append(settings[name], value)
			}
		}
	}
}

// last returns the last value of a setting.
func (u *Unit) last(name string) string {
	if list := u.settings[name]; len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

func (u *Unit) yes(name string) bool {
	return slices.Contains([]string{"1", "yes", "y", "true", "t", "on"}, strings.ToLower(u.last(name)))
}

// words returns all words of a setting.
func (u *Unit) words(name string) (list []string) {
	for _, value := range u.settings[name] {
		list = append(list, strings.Fields(value)...)
	}
	return list
}

// Refusal returns why a unit cannot load the library, or nil.
func (u *Unit) Refusal() error {
	if u.gateway() {
		return fmt.Errorf("%w %s: it starts the gateway itself", ErrUnit, u.Name)
	}
	for _, e := range u.settings["Environment"] {
		if e != u.preload && strings.Contains(e, EnvPreload+"=") {
			return fmt.Errorf("%w %s: it sets LD_PRELOAD itself: name both libraries there, with a space between them", ErrUnit, u.Name)
		}
	}
	if len(u.files) > 0 {
		return fmt.Errorf("%w %s: its EnvironmentFile=%s sets LD_PRELOAD: name both libraries there, with a space between them", ErrUnit, u.Name, u.files[0])
	}
	for _, w := range u.words("UnsetEnvironment") {
		if name, _, _ := strings.Cut(strings.Trim(w, "\"'"), "="); name == EnvPreload {
			return fmt.Errorf("%w %s: its UnsetEnvironment= takes LD_PRELOAD away", ErrUnit, u.Name)
		}
	}
	if u.emptied != "" {
		return fmt.Errorf("%w %s: %s, which is read after %s, empties Environment=: give it a name that comes before", ErrUnit, u.Name, u.emptied, DropIn)
	}
	for _, name := range []string{"RootDirectory", "RootImage"} {
		if v := u.last(name); v != "" && v != "/" {
			return fmt.Errorf("%w %s: %s=%s hides the library from it", ErrUnit, u.Name, name, v)
		}
	}
	if calls := u.deadly(); len(calls) > 0 {
		return fmt.Errorf("%w %s: its SystemCallFilter= would end it where the library calls %s: add SystemCallFilter=%s to it, or SystemCallErrorNumber=EPERM, with which its connections stay native",
			ErrUnit, u.Name, strings.Join(calls, ", "), strings.Join(calls, " "))
	}
	return nil
}

// gateway tells whether the unit starts a gateway, also through another program such as ip netns exec.
func (u *Unit) gateway() bool {
	for _, v := range u.settings["ExecStart"] {
		words := strings.Fields(v)
		for i, w := range words {
			if path.Base(w) == "smcgw" && slices.Contains(words[i+1:], "up") {
				return true
			}
		}
	}
	return false
}

// libraryCalls are system calls of the library that a program need not make itself, by the set of systemd that has
// them (systemd.exec(5)).
var libraryCalls = []struct{ set, names string }{
	{"@basic-io", "lseek pread64"},
	{"@file-system", "faccessat fcntl ftruncate"},
	{"@io-event", "eventfd2 poll ppoll"},
	{"@ipc", "memfd_create"},
	{"@network-io", "connect getpeername getsockname getsockopt recvfrom recvmsg sendmsg sendto setsockopt shutdown socket"},
	{"@process", "kill tkill waitid"},
	{"@signal", "rt_sigaction rt_sigprocmask"},
	{"@system-service", "ioctl madvise mremap"},
}

// deadly returns the library's system calls that would end the unit's programs.
func (u *Unit) deadly() (calls []string) {
	lists := u.settings["SystemCallFilter"]
	if e := u.last("SystemCallErrorNumber"); len(lists) == 0 || e != "" && e != "kill" {
		return nil
	}
	for _, of := range libraryCalls {
		for call := range strings.FieldsSeq(of.names) {
			if kills(lists, call, of.set) {
				calls = append(calls, call)
			}
		}
	}
	return calls
}

// kills tells whether lists of SystemCallFilter= end a program at a call. The first list decides for calls in no list.
func kills(lists []string, call, set string) bool {
	killed := !strings.HasPrefix(lists[0], "~")
	for _, list := range lists {
		names, denies := strings.CutPrefix(list, "~")
		for name := range strings.FieldsSeq(names) {
			name, action, _ := strings.Cut(name, ":")
			if name == call || name == set || name == "@system-service" || name == "@known" {
				killed = denies && (action == "" || action == "kill")
			}
		}
	}
	return killed
}

// Warnings returns settings of a unit that may hide the library or the daemon from its programs.
func (u *Unit) Warnings(library string) (list []string) {
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, name := range []string{"InaccessiblePaths", "TemporaryFileSystem", "NoExecPaths"} {
		for _, w := range u.words(name) {
			hidden, _, _ := strings.Cut(strings.TrimLeft(w, "-+"), ":")
			for _, needed := range []string{library, "/run/smcgw"} {
				if name == "NoExecPaths" && (needed != library || u.executes(library, hidden)) { // sockets are not executed
					continue
				}
				if within(needed, hidden) {
					warn("%s=%s may hide %s: programs then start without the library, or without the daemon", name, w, needed)
				}
			}
		}
	}
	if families := u.words("RestrictAddressFamilies"); len(families) > 0 && (families[0] == "none" || strings.HasPrefix(families[0], "~") == slices.Contains(append(families, strings.TrimPrefix(families[0], "~")), "AF_UNIX")) {
		warn("RestrictAddressFamilies= leaves AF_UNIX out: the daemon cannot be reached, and its connections stay native")
	}
	if u.yes("DynamicUser") {
		warn("DynamicUser=: its user has another number at each start, so quotas and rules by user do not follow it")
	}
	if len(u.words("SystemCallFilter")) > 0 {
		warn("SystemCallFilter=: where it refuses another call of the library, connections stay native, or the program ends as at a call of its own")
	}
	return list
}

// within tells whether a file is at or below a path.
func within(file, at string) bool {
	at = path.Clean(at)
	return file == at || strings.HasPrefix(file, strings.TrimSuffix(at, "/")+"/")
}

// executes tells whether ExecPaths= excepts a file from a path of NoExecPaths=: the longer path counts.
func (u *Unit) executes(file, denied string) bool {
	return slices.ContainsFunc(u.words("ExecPaths"), func(w string) bool {
		w = strings.TrimLeft(w, "-+")
		return within(file, w) && len(path.Clean(w)) > len(path.Clean(denied))
	})
}

// Programs returns the files that the unit starts, as far as it names them by absolute paths.
func (u *Unit) Programs() (list []string) {
	for _, v := range u.settings["ExecStart"] {
		if words := strings.Fields(v); len(words) > 0 {
			if file := strings.TrimLeft(words[0], "-@:+!|"); path.IsAbs(file) && !strings.ContainsAny(file, "%$\"") {
				list = append(list, file)
			}
		}
	}
	return list
}

// dropInFile returns the path of our drop-in for a unit.
func dropInFile(unit string) string { return path.Join(etc, unit+".d", DropIn) }

// dropInText returns the content of our drop-in.
func (h *Installation) dropInText() string {
	return "# Made by \"smcgw preload enable\", removed by \"smcgw preload disable\".\n[Service]\nEnvironment=" + h.assignment() + "\n"
}

// assignment returns the variable that a unit gets. Its programs may be of either libc.
func (h *Installation) assignment() string {
	return "\"" + EnvPreload + "=" + path.Join(h.Library, Anywhere) + "\""
}

// reached fails if no loader finds the library under the name in drop-ins, as in the tree that it was built in.
func (h *Installation) reached() error {
	for _, dir := range []string{"lib", "lib64", "lib/*", "$LIB"} {
		if found, _ := filepath.Glob(path.Join(h.Root, h.Library, dir, Name)); found != nil { // the pattern is good
			return nil
		}
	}
	return fmt.Errorf("%w %s: %s is not below it, by which programs of either libc find theirs: install it by a package or make install", ErrLibrary, h.Library, Anywhere)
}

// EnableUnit makes the unit's programs load the library from their next start. changed is false if it was enabled
// already.
func (h *Installation) EnableUnit(u *Unit) (changed bool, err error) {
	if err := u.Refusal(); err != nil {
		return false, err
	}
	if err := h.reached(); err != nil {
		return false, err
	}
	file := path.Join(h.Root, dropInFile(u.Name))
	text := h.dropInText()
	if have, err := os.ReadFile(file); err == nil && string(have) == text {
		return false, nil
	}
	if err := os.MkdirAll(path.Dir(file), 0o755); err != nil { //nolint:gosec // systemd's own mode
		return false, fmt.Errorf("%w %s: %w", ErrUnit, u.Name, err)
	}
	if err := replace(file, []byte(text)); err != nil {
		return false, fmt.Errorf("%w %s: %w", ErrUnit, u.Name, err)
	}
	return true, nil
}

// DisableUnit undoes EnableUnit, even for a unit that is gone, or whose name has become an alias. changed is false if
// there was nothing to undo.
func (h *Installation) DisableUnit(name string) (own string, changed bool, err error) {
	if name, err = unitName(name); err != nil {
		return "", false, err
	}
	own = name
	if _, resolved, err := h.unitFile(name); err == nil {
		own = resolved
	}
	for _, unit := range slices.Compact([]string{own, name}) {
		file := path.Join(h.Root, dropInFile(unit))
		if err := os.Remove(file); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return own, changed, fmt.Errorf("%w %s: %w", ErrUnit, unit, err)
		}
		_ = os.Remove(path.Dir(file)) // fails if others have drop-ins there
		changed = true
	}
	return own, changed, nil
}

// Units lists the units with our drop-in.
func (h *Installation) Units() ([]string, error) {
	found, err := filepath.Glob(path.Join(h.Root, etc, "*.service.d", DropIn))
	if err != nil {
		return nil, err
	}
	list := []string{}
	for _, f := range found {
		list = append(list, strings.TrimSuffix(path.Base(path.Dir(f)), ".d"))
	}
	return list, nil
}

// replace writes a file, which all may read, whole or not at all.
func replace(file string, text []byte) (err error) {
	f, err := os.CreateTemp(path.Dir(file), "."+path.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}
