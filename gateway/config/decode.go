package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/report"
)

// decode strictly parses the only document in data. The index records what is wrong with it
// and the position of each field.
func decode(data []byte) (Config, *index, error) {
	x := newIndex()
	root, err := parseYAML(data)
	if err != nil || root == nil {
		return Config{}, x, err
	}
	x.add(root, reflect.TypeFor[Config](), "")
	if len(x.errs) > 0 {
		return Config{}, x, joinFieldErrors(x.errs) // the library would follow aliases
	}
	var c Config
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	err = dec.Decode(&c)
	if wrong, ok := errors.AsType[*yaml.TypeError](err); ok {
		for _, text := range wrong.Errors {
			x.errs = append(x.errs, x.explain(text))
		}
	} else if err != nil {
		return Config{}, x, syntaxError(err)
	}
	if x.twice {
		return Config{}, x, joinFieldErrors(x.errs)
	}
	x.refuseZeros(reflect.ValueOf(&c).Elem())
	for i, d := range c.Carriers {
		for _, kind := range report.DeviceKinds() {
			if string(d) == string(kind.Carrier()) {
				c.Carriers[i] = kind
			}
		}
	}
	return c, x, nil
}

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

// wrongAt makes the error of an UnmarshalYAML method: the library collects these and
// continues. index.explain finds the field by the column.
func wrongAt(n *yaml.Node, format string, args ...any) *yaml.TypeError {
	return &yaml.TypeError{Errors: []string{
		fmt.Sprintf("line %d column %d: %s", n.Line, n.Column, fmt.Sprintf(format, args...)),
	}}
}

// fromText parses a value that has its own text form. It ignores the type that YAML would
// give the scalar.
func fromText(n *yaml.Node, set func(text string) error) error {
	if n.Kind != yaml.ScalarNode {
		return wrongAt(n, "must be a single value, not %s", kindName(n))
	}
	if err := set(n.Value); err != nil {
		return wrongAt(n, "%v", err)
	}
	return nil
}

// Prefixes are addresses of peers. In a file, an address means the prefix of just that
// address.
type Prefixes []netip.Prefix

// UnmarshalYAML parses a list. IPv4-mapped IPv6 is unmapped: the programs know only one form
// of an address.
func (p *Prefixes) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return wrongAt(n, "must be a list, not %s", kindName(n))
	}
	all, wrong := make(Prefixes, len(n.Content)), yaml.TypeError{}
	for i, e := range n.Content {
		err := fromText(e, func(text string) (err error) {
			all[i], err = parsePeer(text)
			return err
		})
		if bad, ok := errors.AsType[*yaml.TypeError](err); ok {
			wrong.Errors = append(wrong.Errors, bad.Errors...)
		}
	}
	if len(wrong.Errors) > 0 {
		return &wrong
	}
	*p = all
	return nil
}

// parsePeer parses a prefix or an address.
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

// expected says what a field of this type must hold, for types that the library parses
// itself.
func expected(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "is not a duration such as 200ms, 10m or 1h"
	case t.Kind() == reflect.Struct:
		return "must be a set of fields"
	case t.Kind() == reflect.Slice:
		return "must be a list"
	case t.Kind() == reflect.String:
		return "must be a single value"
	case isInteger(t):
		if t.Kind() == reflect.Int {
			return "is not a whole number such as 5000"
		}
		return fmt.Sprintf("is not a number from 0 to %d", uint64(1)<<t.Bits()-1)
	default:
		return "must be a " + t.String()
	}
}

func isInteger(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Int, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return true
	default:
		return false
	}
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
