package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// DefaultPath is where the packages put the configuration.
const DefaultPath = "/etc/smcgw/smcgw.yaml"

// maxConfigSize bounds the file; the largest sensible one has a few KiB.
const maxConfigSize = 1 << 20

// File is a configuration and where each part of it came from.
type File struct {
	// Name is the name of the file.
	Name string
	// Config is complete: defaults are filled in and it is valid.
	Config Config

	lines map[string]int
	notes []string // about what is written, and not in Config
}

// Load reads the file at path strictly. Its error joins a FieldError for every
// problem of the file, unknown fields and invalid values alike.
func Load(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return parseConfig(path, data, lookupUser)
}

// Effective is what [Load] reads, without where it came from.
func Effective(path string) (Config, error) {
	f, err := Load(path)
	if err != nil {
		return Config{}, err
	}
	return f.Config, nil
}

// read returns what is in the file, a byte more than maxConfigSize of it at most.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w (-c names the file; an empty one is valid)", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("read configuration: %s is a directory: name a file of it with -c", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// AdminIn returns the path of the admin socket that the file at path names, whatever is
// wrong in its other fields: a gateway that runs has read another version of it. Without one
// it is the default.
func AdminIn(path string) string {
	data, err := read(path)
	if err == nil && len(data) <= maxConfigSize {
		if root, err := parseYAML(data); err == nil && root != nil {
			return adminOf(root)
		}
	}
	return Config{}.WithDefaults().Admin
}

// adminOf is AdminIn of the root of a file.
func adminOf(root *yaml.Node) string {
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		k, name, value := checker{}, root.Content[i], root.Content[i+1]
		k.socketPath("admin", value.Value)
		if name.Value == "admin" && value.Kind == yaml.ScalarNode && len(k.errs) == 0 {
			return value.Value
		}
	}
	return Config{}.WithDefaults().Admin
}

// parseConfig reads a configuration; users is the user database.
func parseConfig(name string, data []byte, users userLookup) (*File, error) {
	if len(data) > maxConfigSize {
		return nil, &FieldError{Msg: fmt.Sprintf("larger than %s", Bytes(maxConfigSize))}
	}
	c, x, err := decode(data)
	if err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	for _, fe := range append(c.validate(), c.resolveUsers(users)...) {
		if !x.unusable(fe.Path) {
			fe.Line = x.lineOf(fe.Path)
			x.errs = append(x.errs, fe)
		}
	}
	slices.SortStableFunc(x.errs, func(a, b *FieldError) int { return a.Line - b.Line })
	if err := joinFieldErrors(x.errs); err != nil {
		return nil, err
	}
	return &File{Name: name, Config: c, lines: x.lines, notes: x.notes(c)}, nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError gives the library's message the shape of ours.
func syntaxError(err error) error {
	fe := &FieldError{Msg: err.Error()}
	if m := yamlLine.FindStringSubmatch(fe.Msg); m != nil {
		fe.Line, _ = strconv.Atoi(m[1])
		fe.Msg = "not YAML: " + fe.Msg[len(m[0]):]
		if strings.Contains(fe.Msg, "cannot start any token") {
			fe.Msg += ": a tab, perhaps, where only spaces may be"
		}
	}
	return fe
}
