package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/internal/nearest"
)

// index records the position of each field of a file, for the origin of values and because
// the library's errors name only lines. It also checks what the library lets pass.
type index struct {
	places []*place
	lines  map[string]int // by path, for every field that has a value
	errs   []*FieldError
	// twice: a field was given twice. The library then decodes nothing of the mapping it is
	// in.
	twice bool
}

// place is a value in the file, or its root.
type place struct {
	path   string
	line   int // of the name, if the value has one
	value  *yaml.Node
	typ    reflect.Type // the type it is decoded into; nil: unknown field
	parent reflect.Type
	blamed bool // an error was reported for it
}

func newIndex() *index { return &index{lines: map[string]int{}} }

// isNull reports whether a field has a name but no value: it counts as absent.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (x *index) fail(n *yaml.Node, path, format string, args ...any) {
	x.errs = append(x.errs, &FieldError{Path: path, Line: n.Line, Msg: fmt.Sprintf(format, args...)})
}

// add records a value and everything below it.
func (x *index) add(n *yaml.Node, t reflect.Type, path string) {
	if path == "" {
		x.places = append(x.places, &place{line: n.Line, value: n, typ: t})
	}
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		x.fail(n, path, "anchors and aliases are not supported")
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			x.addField(n.Content[i], n.Content[i+1], t, path)
		}
	case n.Kind == yaml.SequenceNode:
		for i, e := range n.Content {
			x.addElement(e, t, fmt.Sprintf("%s[%d]", path, i))
		}
	case t != nil && n.Value == "" && isWord(t) && !isNull(n):
		x.fail(n, path, `"" is not a name`) // it would be taken for a missing field
	case t != nil && isInteger(t) && n.ShortTag() == "!!float":
		x.fail(n, path, "%q %s", n.Value, expected(t)) // the library truncates it
	case t != nil && isInteger(t) && n.ShortTag() == "!!int" && !isDecimal(n.Value):
		x.fail(n, path, "%q is not written in decimal", n.Value) // the library reads 010 as 8
	}
}

// isWord reports whether a type has only names as values, which validation knows; none is
// empty.
func isWord(t reflect.Type) bool { return t.Kind() == reflect.String && t.PkgPath() != "" }

// isDecimal reports whether a number consists of digits without leading zeros.
func isDecimal(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == digits
}

func (x *index) addField(key, value *yaml.Node, parent reflect.Type, path string) {
	name := fieldPath(path, key.Value)
	if key.ShortTag() == "!!merge" {
		x.fail(key, name, "anchors and aliases are not supported")
		return
	}
	p := &place{path: name, line: key.Line, value: value, parent: parent}
	p.typ, _ = fieldType(parent, key.Value)
	x.places = append(x.places, p)
	if _, given := x.lines[name]; !given && !isNull(value) {
		x.lines[name] = key.Line
	}
	x.add(value, p.typ, name)
}

func (x *index) addElement(e *yaml.Node, list reflect.Type, path string) {
	if isNull(e) {
		x.fail(e, path, "has no value")
		return
	}
	p := &place{path: path, line: e.Line, value: e}
	if list != nil && list.Kind() == reflect.Slice {
		p.typ = list.Elem()
	}
	x.places = append(x.places, p)
	x.lines[path] = e.Line
	x.add(e, p.typ, path)
}

// lineOf returns the line of the field at path, or of the closest enclosing one, or 0 if
// neither was given.
func (x *index) lineOf(path string) int {
	for path != "" {
		if line, ok := x.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// unusable reports whether the value at path could not be decoded, or is in a list with such
// a value: the library omits it, and those after it move up.
func (x *index) unusable(path string) bool {
	return slices.ContainsFunc(x.places, func(p *place) bool {
		element := strings.HasSuffix(p.path, "]") && strings.HasPrefix(path, p.path[:strings.LastIndexByte(p.path, '[')+1])
		return p.blamed && p.path != "" && (path == p.path || element)
	})
}

// refuseZeros reports zeros that would be taken for missing fields.
func (x *index) refuseZeros(root reflect.Value) {
	for _, f := range configFields {
		p := x.find(func(p *place) bool { return p.path == f.Path && !p.blamed && !isNull(p.value) })
		if p == nil || f.Default == "" || strings.Contains(f.Path, "[]") {
			continue
		}
		v := fieldAt(root, f.Path)
		if v.IsZero() && v.Kind() != reflect.String {
			p.blamed = true
			x.fail(p.value, p.path, "must not be 0")
		}
	}
}

// find returns the first place that satisfies meant and has no error reported.
func (x *index) find(meant func(*place) bool) *place {
	for _, p := range x.places {
		if !p.blamed && meant(p) {
			return p
		}
	}
	return nil
}

// The formats of the library's errors and of those of wrongAt.
var (
	atColumn   = regexp.MustCompile(`(?s)^line (\d+) column (\d+): (.*)$`)
	unknownKey = regexp.MustCompile(`(?s)^line (\d+): field (.*) not found in type `)
	keyTwice   = regexp.MustCompile(`(?s)^line (\d+): mapping key (".*") already defined at line \d+$`)
	wrongType  = regexp.MustCompile("(?s)^line (\\d+): cannot unmarshal \\S+(?: `(.*)`)? into (\\S+)$")
	otherwise  = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)
)

// explain converts an error of the library to one that names the field and what was expected.
// An error of unknown format keeps its text.
func (x *index) explain(text string) *FieldError {
	if m := atColumn.FindStringSubmatch(text); m != nil {
		p := x.find(func(p *place) bool {
			return strconv.Itoa(p.value.Line) == m[1] && strconv.Itoa(p.value.Column) == m[2]
		})
		return p.blame(m[1], m[3])
	}
	if m := unknownKey.FindStringSubmatch(text); m != nil {
		p := x.find(func(p *place) bool { return p.typ == nil && p.named(m[1], m[2]) })
		if p != nil {
			return p.blame(m[1], "unknown field"+suggest(p.parent, m[2]))
		}
	}
	if m := keyTwice.FindStringSubmatch(text); m != nil {
		if name, err := strconv.Unquote(m[2]); err == nil {
			p := x.find(func(p *place) bool { return p.named(m[1], name) && x.lines[p.path] > 0 })
			x.twice = true
			return p.blame(m[1], "given twice")
		}
	}
	if m := wrongType.FindStringSubmatch(text); m != nil {
		p := x.find(func(p *place) bool { return p.refused(m[1], m[2], m[3]) })
		if p != nil {
			return p.blame(m[1], p.expectation())
		}
	}
	if m := otherwise.FindStringSubmatch(text); m != nil {
		return (*place)(nil).blame(m[1], m[2])
	}
	return &FieldError{Msg: text}
}

// named reports whether the place is a field with this name on this line.
func (p *place) named(line, name string) bool {
	return strconv.Itoa(p.line) == line && (p.path == name || strings.HasSuffix(p.path, "."+name))
}

// refused reports whether the place is what the library could not decode: on that line, into
// that type. For a scalar, shown is the beginning of its value.
func (p *place) refused(line, shown, into string) bool {
	if p.typ == nil || p.typ.String() != into || strconv.Itoa(p.value.Line) != line {
		return false
	}
	if p.value.Kind != yaml.ScalarNode {
		return shown == ""
	}
	value := p.value.Value
	if len(value) > 10 {
		value = value[:7] + "..."
	}
	return value == shown
}

// expectation says what the place must hold and what it holds.
func (p *place) expectation() string {
	if p.value.Kind == yaml.ScalarNode && p.typ.Kind() != reflect.Struct && p.typ.Kind() != reflect.Slice {
		return fmt.Sprintf("%q %s", p.value.Value, expected(p.typ))
	}
	if isInteger(p.typ) {
		return "must be a single value, not " + kindName(p.value)
	}
	if p.typ == reflect.TypeFor[Security]() && p.value.Kind == yaml.ScalarNode { // the value may be a key
		return expected(p.typ) + ", not a single value"
	}
	return expected(p.typ) + ", not " + kindName(p.value)
}

// blame makes an error about the place, or if it is nil, about a line.
func (p *place) blame(line, msg string) *FieldError {
	n, _ := strconv.Atoi(line)
	if p == nil {
		return &FieldError{Line: n, Msg: msg}
	}
	p.blamed = true
	return &FieldError{Path: p.path, Line: n, Msg: msg}
}

// fieldType returns the type of a field by its name in the file.
func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	if t == nil || t.Kind() != reflect.Struct {
		return nil, false
	}
	for f := range t.Fields() {
		if f.Tag.Get("yaml") == name {
			return f.Type, true
		}
	}
	return nil, false
}

func fieldPath(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}

// suggest names the field that was probably meant, or lists all known ones.
func suggest(t reflect.Type, name string) string {
	var all []string
	for f := range t.Fields() {
		all = append(all, f.Tag.Get("yaml"))
	}
	if meant := nearest.Name(name, all); meant != "" {
		return fmt.Sprintf(" (did you mean %s?)", meant)
	}
	return " (known: " + strings.Join(all, ", ") + ")"
}
