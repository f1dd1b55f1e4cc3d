package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"

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
}

// Load reads the file at path strictly. Its error joins a FieldError for every
// problem of the file, unknown fields and invalid values alike.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseConfig(path, data, lookupUser)
}

// parseConfig reads a configuration; users is the user database.
func parseConfig(name string, data []byte, users userLookup) (*File, error) {
	if len(data) > maxConfigSize {
		return nil, &FieldError{Msg: fmt.Sprintf("larger than %s", Bytes(maxConfigSize))}
	}
	doc, err := parseYAML(data)
	if err != nil {
		return nil, err
	}
	d, c := newDecoder(), Config{}
	if doc != nil {
		d.decode(doc, reflect.ValueOf(&c).Elem(), "")
	}
	c = c.WithDefaults()
	for _, fe := range c.validate(users) {
		if line := d.lineOf(fe.Path); line >= 0 {
			fe.Line = line
			d.errs = append(d.errs, fe)
		}
	}
	slices.SortStableFunc(d.errs, func(a, b *FieldError) int { return a.Line - b.Line })
	if err := joinFieldErrors(d.errs); err != nil {
		return nil, err
	}
	c.resolveUsers(users)
	return &File{Name: name, Config: c, lines: d.lines}, nil
}

// parseYAML returns the root of the only document, nil if the file is empty.
func parseYAML(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, syntaxError(err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, &FieldError{Line: second.Line, Msg: "a second document; the file must hold one"}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(err)
	}
	if len(doc.Content) != 1 {
		return nil, nil
	}
	return doc.Content[0], nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError gives the library's message the shape of ours.
func syntaxError(err error) error {
	fe := &FieldError{Msg: err.Error()}
	if m := yamlLine.FindStringSubmatch(fe.Msg); m != nil {
		fe.Line, _ = strconv.Atoi(m[1])
		fe.Msg = "not YAML: " + fe.Msg[len(m[0]):]
	}
	return fe
}
