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

// DefaultPath is where the packages install the configuration.
const DefaultPath = "/etc/smcgw/smcgw.yaml"

// maxConfigSize bounds the file; the largest sensible one has a few KiB.
const maxConfigSize = 1 << 20

// File is a configuration together with the origin of each part.
type File struct {
	// Name is the name of the file.
	Name string
	// Config is complete: defaults are filled in, and it is valid.
	Config Config

	lines map[string]int
	notes []string // about how the file is written, which Config does not show
}

// Load strictly parses the file at path. Its error joins one FieldError per problem, unknown
// fields as well as invalid values.
func Load(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return parseConfig(path, data, lookupUser)
}

// Effective is like [Load], without the origins.
func Effective(path string) (Config, error) {
	f, err := Load(path)
	if err != nil {
		return Config{}, err
	}
	return f.Config, nil
}

// read returns the content of the file, at most one byte more than maxConfigSize.
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

// AdminIn returns the path of the admin socket named in the file at path, even if other
// fields are invalid: a running gateway may have read another version of the file. If the
// file names none, it returns the default.
func AdminIn(path string) string {
	data, err := read(path)
	if err == nil && len(data) <= maxConfigSize {
		if root, err := parseYAML(data); err == nil && root != nil {
			return adminOf(root)
		}
	}
	return Config{}.WithDefaults().Admin
}

// adminOf is AdminIn for the root of a file.
func adminOf(root *yaml.Node) string {
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		k, name, value := checker{}, root.Content[i], root.Content[i+1]
		k.admin(value.Value)
		if name.Value == "admin" && value.Kind == yaml.ScalarNode && len(k.errs) == 0 {
			return value.Value
		}
	}
	return Config{}.WithDefaults().Admin
}

// parseConfig parses a configuration; users is the user database.
func parseConfig(name string, data []byte, users userLookup) (*File, error) {
	if len(data) > maxConfigSize {
		return nil, &FieldError{Msg: fmt.Sprintf("larger than %s", Bytes(maxConfigSize))}
	}
	c, d, err := decode(data)
	if err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	for _, fe := range append(c.validate(), c.resolveUsers(users)...) {
		if !d.unusable(fe.Path) {
			fe.Line = d.lineOf(fe.Path)
			d.errs = append(d.errs, fe)
		}
	}
	slices.SortStableFunc(d.errs, func(a, b *FieldError) int { return a.Line - b.Line })
	if err := joinFieldErrors(d.errs); err != nil {
		return nil, err
	}
	return &File{Name: name, Config: c, lines: d.lines, notes: d.notes}, nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError converts an error of the library to a FieldError.
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
