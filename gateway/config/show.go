package config

import (
	"bytes"
	"encoding"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"go.yaml.in/yaml/v3"
)

// origin returns the origin of the field at path: "FILE:LINE" or "default".
func (f *File) origin(path string) string {
	if line := f.lines[path]; line > 0 {
		return fmt.Sprintf("%s:%d", f.Name, line)
	}
	return "default"
}

// YAML renders the effective configuration, with the origin of each field as a comment. The
// text is itself a configuration with the same meaning.
func (f *File) YAML() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(f.node(reflect.ValueOf(&f.Config).Elem(), "")); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("render configuration: %w", err)
	}
	return out.Bytes(), nil
}

// isScalar reports whether v is written as a single value.
func isScalar(v reflect.Value) bool {
	return v.Type() == reflect.TypeFor[netip.Prefix]() || v.Type() == reflect.TypeFor[User]() || v.Kind() != reflect.Struct && v.Kind() != reflect.Slice
}

// node converts a value to YAML.
func (f *File) node(v reflect.Value, path string) *yaml.Node {
	switch {
	case isScalar(v):
		return scalarNode(v)
	case v.Kind() == reflect.Slice:
		return f.listNode(v, path)
	default:
		return f.mappingNode(v, path)
	}
}

func (f *File) mappingNode(v reflect.Value, path string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		sub := fieldPath(path, name)
		val := f.node(v.Field(i), sub)
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: name}
		// The encoder loses a comment on a block value; in a block, each field has its
		// origin.
		if val.Kind == yaml.ScalarNode || val.Style == yaml.FlowStyle {
			val.LineComment = f.origin(sub)
		}
		n.Content = append(n.Content, key, val)
	}
	return n
}

func (f *File) listNode(v reflect.Value, path string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for i := range v.Len() {
		n.Content = append(n.Content, f.node(v.Index(i), fmt.Sprintf("%s[%d]", path, i)))
	}
	if v.Len() == 0 || isScalar(v.Index(0)) {
		n.Style = yaml.FlowStyle
	}
	return n
}

// scalarNode renders a leaf the way the decoder parses it.
func scalarNode(v reflect.Value) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: scalarText(v)}
	if u, ok := reflect.TypeAssert[User](v); v.Kind() == reflect.String || ok && u.Name != "" {
		n.Tag = "!!str" // the encoder quotes what would not be read as a string
	}
	return n
}

func scalarText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return shortDuration(x)
	case encoding.TextMarshaler:
		if b, err := x.MarshalText(); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v.Interface())
}

// shortDuration drops the zero parts, as in 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if d >= time.Minute && d%time.Minute == 0 {
		s = s[:len(s)-len("0s")]
	}
	if d >= time.Hour && d%time.Hour == 0 {
		s = s[:len(s)-len("0m")]
	}
	return s
}
