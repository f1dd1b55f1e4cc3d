package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// WithDefaults returns a copy in which every zero field has the default of configFields.
// Carriers that are empty but not nil stay empty.
func (c Config) WithDefaults() Config {
	out := c.clone()
	for _, f := range configFields {
		if f.Default != "" && !strings.Contains(f.Path, "[]") {
			setDefault(reflect.ValueOf(&out).Elem(), f)
		}
	}
	for i := range out.Policy {
		r := &out.Policy[i]
		if r.Name == "" {
			r.Name = fmt.Sprintf("rule-%d", i+1)
		}
		if r.Action == "" {
			r.Action = report.ActionPass
		}
		if r.Way == "" {
			r.Way = report.WayAny
		}
		if r.Match.Proto == "" {
			r.Match.Proto = report.ProtoTCP
		}
		if r.Match.Direction == "" {
			r.Match.Direction = report.DirectionBoth
		}
	}
	return out
}

// setDefault fills the field at f.Path of root if it is zero. The default is parsed as the
// file is, so that a text means the same in both. A test parses every default.
func setDefault(root reflect.Value, f field) {
	v := fieldAt(root, f.Path)
	if !v.IsZero() {
		return
	}
	if n, err := parseYAML([]byte(f.Default)); err == nil && n != nil {
		newDecoder().value(n, v, f.Path)
	}
}

// fieldAt returns the field of a struct by its path in the file.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for name := range strings.SplitSeq(path, ".") {
		v = fieldNamed(v, name)
	}
	return v
}

// fieldNamed returns the field of a struct by its name in the file.
func fieldNamed(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// clone copies the lists that WithDefaults modifies.
func (c Config) clone() Config {
	c.Policy = append([]Rule(nil), c.Policy...)
	return c
}

// With returns a copy in which the named field, such as log.level, has another value. The
// error is a FieldError: the value is invalid, or the field takes a restart.
func (l Log) With(field, value string) (Log, error) {
	var err error
	switch field {
	case "log.level":
		err = pick(&l.Level, value, logLevels())
	case "log.access":
		err = pick(&l.Access, value, accessLogs())
	default:
		err = fmt.Errorf("takes a restart; at once can be changed: %s", strings.Join(LogSettings(), ", "))
	}
	if err != nil {
		return Log{}, &FieldError{Path: field, Msg: err.Error()}
	}
	return l, nil
}

// LogSettings lists the fields that With can change.
func LogSettings() []string { return []string{"log.level", "log.access"} }
