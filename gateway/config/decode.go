package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/nearest"
)

// decoder converts a parsed file to a Config. It collects what is wrong with the file, and
// the position of each field, for the origin of values.
type decoder struct {
	lines map[string]int // by path, for every field that has a value
	errs  []*FieldError
	wrong map[string]bool // paths of errs
	notes []string        // about prefixes that are longer than what they mean
}

// decode strictly parses the only document in data. The error is that the file is not YAML;
// the decoder has the others.
func decode(data []byte) (c Config, d *decoder, err error) {
	d = newDecoder()
	root, err := parseYAML(data)
	if err != nil || root == nil {
		return c, d, err
	}
	v := reflect.ValueOf(&c).Elem()
	d.value(root, v, "")
	d.refuseZeros(v)
	for i, k := range c.Carriers {
		for _, kind := range report.DeviceKinds() {
			if string(k) == string(kind.Carrier()) {
				c.Carriers[i] = kind
			}
		}
	}
	return c, d, nil
}

func newDecoder() *decoder { return &decoder{lines: map[string]int{}, wrong: map[string]bool{}} }

// parseYAML returns the root of the only document, or nil if the file is empty.
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
	if len(doc.Content) != 1 || isNull(doc.Content[0]) {
		return nil, nil
	}
	return doc.Content[0], nil
}

// isNull reports whether a field has a name but no value: it counts as absent.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	d.errs = append(d.errs, &FieldError{Path: path, Line: n.Line, Msg: fmt.Sprintf(format, args...)})
	d.wrong[path] = true
}

// named is a type with a text form of its own. The type that YAML would give the scalar does
// not matter.
type named interface{ setText(text string) error }

// value decodes a value and everything below it.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	kind := v.Kind()
	switch text, own := v.Addr().Interface().(named); {
	case isAlias(n):
		d.fail(n, path, "anchors and aliases are not supported")
	case own:
		d.text(n, path, text.setText)
	case v.Type() == reflect.TypeFor[netip.Prefix]():
		d.text(n, path, func(text string) (err error) { return d.prefix(v.Addr().Interface().(*netip.Prefix), text, path) })
	case kind == reflect.Struct && n.Kind == yaml.MappingNode:
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			d.field(key, n.Content[i+1], v, path, seen[key.Value])
			seen[key.Value] = true
		}
	case kind == reflect.Struct && v.Type() == reflect.TypeFor[Security]() && n.Kind == yaml.ScalarNode: // it may be a key
		d.fail(n, path, "must be a set of fields, not a single value")
	case kind == reflect.Struct:
		d.fail(n, path, "must be a set of fields, not %s", kindName(n))
	case kind == reflect.Slice && n.Kind == yaml.SequenceNode:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, e := range n.Content {
			d.element(e, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case kind == reflect.Slice:
		d.fail(n, path, "must be a list, not %s", kindName(n))
	default:
		d.text(n, path, func(text string) error { return setScalar(v, n.ShortTag(), text) })
	}
}

func isAlias(n *yaml.Node) bool { return n.Kind == yaml.AliasNode || n.Anchor != "" }

// field decodes a field of a struct.
func (d *decoder) field(key, value *yaml.Node, parent reflect.Value, path string, twice bool) {
	name := fieldPath(path, key.Value)
	field := fieldNamed(parent, key.Value)
	switch {
	case isAlias(key), key.ShortTag() == "!!merge", isAlias(value):
		d.fail(key, name, "anchors and aliases are not supported")
	case key.Kind != yaml.ScalarNode:
		d.fail(key, path, "the name of a field must be a single value, not %s", kindName(key))
	case !field.IsValid():
		d.fail(key, name, "unknown field%s", suggest(parent.Type(), key.Value))
	case twice:
		d.fail(key, name, "given twice")
	case !isNull(value):
		d.lines[name] = key.Line
		d.value(value, field, name)
	}
}

// element decodes an element of a list.
func (d *decoder) element(n *yaml.Node, v reflect.Value, path string) {
	if isNull(n) {
		d.fail(n, path, "has no value")
		return
	}
	d.lines[path] = n.Line
	d.value(n, v, path)
}

// text decodes a single value.
func (d *decoder) text(n *yaml.Node, path string, set func(text string) error) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "must be a single value, not %s", kindName(n))
	} else if err := set(n.Value); err != nil {
		d.fail(n, path, "%v", err)
	}
}

// setScalar sets a value without a text form of its own. tag is the type that YAML gives it.
func setScalar(v reflect.Value, tag, text string) error {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		t, err := time.ParseDuration(text)
		if err != nil || tag != "!!str" {
			return fmt.Errorf("%q is not a duration such as 200ms, 10m or 1h", text)
		}
		v.SetInt(int64(t))
		return nil
	}
	if v.Kind() == reflect.String {
		if text == "" && v.Type().PkgPath() != "" { // it would be taken for a missing field
			return errors.New(`"" is not a name`)
		}
		v.SetString(text)
		return nil
	}
	if tag == "!!int" && !isDecimal(text) { // 010 would be 8 in YAML
		return fmt.Errorf("%q is not written in decimal", text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	ok := err == nil && tag == "!!int"
	if v.CanUint() {
		if !ok || n < 0 || v.OverflowUint(uint64(n)) {
			return fmt.Errorf("%q is not a number from 0 to %d", text, uint64(1)<<v.Type().Bits()-1)
		}
		v.SetUint(uint64(n))
		return nil
	}
	if !ok {
		return fmt.Errorf("%q is not a whole number such as 5000", text)
	}
	v.SetInt(n)
	return nil
}

// isDecimal reports whether a number consists of digits without leading zeros.
func isDecimal(text string) bool {
	digits := strings.TrimPrefix(text, "-")
	n, err := strconv.ParseUint(digits, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == digits
}

// prefix parses a prefix or an address, which means the prefix of just that address.
func (d *decoder) prefix(p *netip.Prefix, text, path string) (err error) {
	*p, err = parsePeer(text)
	if given, errPrefix := netip.ParsePrefix(text); errPrefix == nil && given != given.Masked() {
		d.notes = append(d.notes, fmt.Sprintf("%s: %s means all of %s: the bits after the prefix do not count; one host is %s", path, given, given.Masked(), given.Addr()))
	}
	return err
}

// parsePeer parses a prefix or an address. IPv4-mapped IPv6 is unmapped: the programs know
// only one form of an address.
func parsePeer(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, errAddr := netip.ParseAddr(text)
		if errAddr != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is not an address or a prefix such as 10.0.0.0/8 or fd00::/8", text)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// refuseZeros reports zeros that would be taken for missing fields.
func (d *decoder) refuseZeros(root reflect.Value) {
	for _, f := range configFields {
		line, given := d.lines[f.Path]
		if !given || f.Default == "" || strings.Contains(f.Path, "[]") || d.unusable(f.Path) {
			continue
		}
		if v := fieldAt(root, f.Path); v.IsZero() && v.Kind() != reflect.String {
			d.fail(&yaml.Node{Line: line}, f.Path, "must not be 0")
		}
	}
}

// lineOf returns the line of the field at path, or of the closest enclosing one, or 0 if
// neither was given.
func (d *decoder) lineOf(path string) int {
	for ; path != ""; path = enclosing(path) {
		if line, ok := d.lines[path]; ok {
			return line
		}
	}
	return 0
}

// unusable reports whether the value at path, or one around it, could not be decoded.
func (d *decoder) unusable(path string) bool {
	for ; path != ""; path = enclosing(path) {
		if d.wrong[path] {
			return true
		}
	}
	return false
}

// enclosing returns the path of what the value at path is in.
func enclosing(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

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

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a set of fields"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", n.Value)
	}
}

// FieldError is one error in a configuration.
type FieldError struct {
	// Path is the field, such as policy[2].match.ports[0]; empty if the error concerns the
	// file as a whole.
	Path string `json:"path"`
	// Line is the line of the field in the file, or 0 if it is not from a file.
	Line int `json:"line,omitempty"`
	// Msg says what is wrong, without the field's name.
	Msg string `json:"message"`
}

// Error renders "line 3: mode: what is wrong".
func (e *FieldError) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// FieldErrors returns every FieldError in err, which may be a join, in file order.
func FieldErrors(err error) []*FieldError {
	var out []*FieldError
	collectFieldErrors(err, &out)
	slices.SortStableFunc(out, func(a, b *FieldError) int { return a.Line - b.Line })
	return out
}

func collectFieldErrors(err error, out *[]*FieldError) {
	if join, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range join.Unwrap() {
			collectFieldErrors(e, out)
		}
		return
	}
	if fe, ok := errors.AsType[*FieldError](err); ok {
		*out = append(*out, fe)
	}
}

// joinFieldErrors is errors.Join for a list; it returns nil if the list is empty.
func joinFieldErrors(list []*FieldError) error {
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}
