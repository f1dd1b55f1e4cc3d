package main

import (
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
)

// readable formats the value of a log line for people and programs alike: a duration with its unit, a named value by
// its name. It drops fields without information: a nil error, an empty list or text.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindString:
		if a.Value.String() == "" {
			return slog.Attr{}
		}
	case slog.KindAny:
		return readableAny(a)
	default:
	}
	return a
}

func readableAny(a slog.Attr) slog.Attr {
	v := a.Value.Any()
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return slog.Attr{}
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Func, reflect.Interface:
		if r.IsNil() || r.Kind() != reflect.Pointer && r.Kind() != reflect.Func && r.Len() == 0 {
			return slog.Attr{}
		}
	case reflect.String:
		if r.Len() == 0 {
			return slog.Attr{}
		}
	default:
	}
	switch v := v.(type) {
	case error, json.Marshaler, encoding.TextMarshaler: // left to the handler
	case fmt.Stringer:
		a.Value = slog.StringValue(v.String())
	}
	return a
}
