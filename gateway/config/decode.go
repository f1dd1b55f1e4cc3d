package config

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decoder fills a Config from a YAML tree. The library's own strict mode stops
// at no error either, but reports texts; here every problem has a path and a
// line, and the lines of what was given are kept for the provenance.
type decoder struct {
	errs  []*FieldError
	lines map[string]int // path of every field that was given, and its line
}

func newDecoder() *decoder { return &decoder{lines: make(map[string]int)} }

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	d.errs = append(d.errs, &FieldError{Path: path, Line: n.Line, Msg: fmt.Sprintf(format, args...)})
}

// isNull reports a field that is named but has no value: it counts as absent.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// decode stores n in v, which is settable. A field with an error keeps its
// zero value. Aliases are refused: they make small files arbitrarily large.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, path string) {
	switch {
	case isNull(n):
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.fail(n, path, "anchors and aliases are not supported")
	case isScalar(v):
		d.scalar(n, v, path)
	case v.Kind() == reflect.Struct:
		d.mapping(n, v, path)
	case v.Kind() == reflect.Slice:
		d.list(n, v, path)
	default:
		d.fail(n, path, "fields of type %s cannot be read", v.Type())
	}
}

// retiredFields are known and without effect: they belonged to rules and marks in
// the host's namespace, which are gone. A file that has them is valid.
var retiredFields = []string{"mark_mask", "rule_pref", "table"}

// mapping reads the fields of a struct; unknown and repeated names are errors.
func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "must be a set of fields, not %s", kindName(n))
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		name := fieldPath(path, key.Value)
		f := reflect.Value{}
		if key.Kind == yaml.ScalarNode {
			f = fieldNamed(v, key.Value)
		}
		switch {
		case slices.Contains(retiredFields, name):
		case !f.IsValid():
			d.fail(key, name, "unknown field%s", suggest(v, key.Value))
		case seen[key.Value]:
			d.fail(key, name, "given twice")
		default:
			seen[key.Value] = true
			d.given(key, val, name)
			d.decode(val, f, name)
		}
	}
}

// given remembers where a field stands, unless it has no value.
func (d *decoder) given(key, val *yaml.Node, path string) {
	if !isNull(val) {
		d.lines[path] = key.Line
	}
}

// list reads a sequence. An empty one is kept as empty, not nil.
func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "must be a list, not %s", kindName(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, e := range n.Content {
		elem := fmt.Sprintf("%s[%d]", path, i)
		if isNull(e) {
			d.fail(e, elem, "has no value")
			continue
		}
		d.lines[elem] = e.Line
		d.decode(e, out.Index(i), elem)
	}
	v.Set(out)
}

// scalar reads a leaf by its text: YAML's own idea of the type of a scalar
// (off is a boolean to some, 010 a number to others) is not asked.
func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "must be a single value, not %s", kindName(n))
		return
	}
	err := setScalar(v, n.Value)
	if err == nil && v.IsZero() && v.Kind() != reflect.String && hasDefault(path) {
		err = errors.New("must not be 0")
	}
	if err != nil {
		v.SetZero()
		d.fail(n, path, "%s", err)
		d.lines[path] = -n.Line // given but unusable: validation says no more about it
	}
}

// hasDefault reports whether a zero at path would be taken for a missing field.
func hasDefault(path string) bool {
	return slices.ContainsFunc(configFields, func(f field) bool {
		return f.Path == path && f.Default != ""
	})
}

// lineOf finds where the field at path, or what it is part of, stands: 0 when
// it was not given, negative when its value was refused already.
func (d *decoder) lineOf(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// textValue is a leaf that knows its own text form. It is not
// encoding.TextUnmarshaler, because JSON would use that too, and a tool must
// not stumble over a mode that only a newer daemon knows.
type textValue interface{ setText(text string) error }

// isScalar reports whether v is written as one value.
func isScalar(v reflect.Value) bool {
	if _, ok := reflect.TypeAssert[*netip.Prefix](v.Addr()); ok {
		return true
	}
	return v.Kind() != reflect.Struct && v.Kind() != reflect.Slice
}

// setScalar reads a text into a leaf of the configuration.
func setScalar(v reflect.Value, text string) (err error) {
	switch dst := v.Addr().Interface().(type) {
	case *time.Duration:
		*dst, err = parseDuration(text)
		return err
	case *netip.Prefix:
		*dst, err = parsePeer(text)
		return err
	case textValue:
		return dst.setText(text)
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return nil
	case reflect.Int, reflect.Uint16, reflect.Uint32:
		return setNumber(v, text)
	default:
		return fmt.Errorf("fields of type %s cannot be read", v.Type())
	}
}

// setNumber reads a decimal or 0x number that fits the field and is not
// negative: nothing in the configuration is.
func setNumber(v reflect.Value, text string) error {
	digits, base, bits := text, 10, v.Type().Bits()
	if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		digits, base = hex, 16
	}
	if v.CanInt() {
		bits--
	}
	u, err := strconv.ParseUint(digits, base, bits)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a number from 0 to %d", text, uint64(1)<<bits-1)
	case v.CanInt():
		v.SetInt(int64(u))
	default:
		v.SetUint(u)
	}
	return nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 200ms, 10m or 1h", text)
	}
	return d, nil
}

// parsePeer reads a prefix, or an address as the prefix of just this address.
// IPv4 in IPv6 is unmapped: the programs know one form of an address only.
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

func fieldPath(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
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

// suggest names the field that was probably meant, or lists all of a small set.
func suggest(v reflect.Value, name string) string {
	var all []string
	for i := range v.NumField() {
		known := v.Type().Field(i).Tag.Get("yaml")
		if strings.EqualFold(strings.NewReplacer("-", "_", " ", "_").Replace(name), known) || known == name+"s" || known+"s" == name {
			return fmt.Sprintf(" (did you mean %s?)", known)
		}
		all = append(all, known)
	}
	return " (known: " + strings.Join(all, ", ") + ")"
}
