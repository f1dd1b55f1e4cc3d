package report

import "reflect"

// The counters of a document are its numbers of type uint64, by themselves and in maps.
// Numbers of other types are momentary values.

// addCounters adds the counters of from to those of to.
func addCounters[T any](to *T, from T) {
	combine(reflect.ValueOf(to).Elem(), reflect.ValueOf(from), func(a, b uint64) uint64 { return a + b })
}

// takeCounters subtracts the counters of from from those of to. None falls below 0, because
// they were not all read at the same instant.
func takeCounters[T any](to *T, from T) {
	combine(reflect.ValueOf(to).Elem(), reflect.ValueOf(from), func(a, b uint64) uint64 { return a - min(a, b) })
}

// combine sets each counter of to. It creates the maps of to anew, with the keys of both,
// because another document may share the old ones.
func combine(to, from reflect.Value, op func(a, b uint64) uint64) {
	switch to.Kind() {
	case reflect.Uint64:
		to.SetUint(op(to.Uint(), from.Uint()))
	case reflect.Struct:
		for i := range to.NumField() {
			if to.Type().Field(i).IsExported() {
				combine(to.Field(i), from.Field(i), op)
			}
		}
	case reflect.Map:
		if to.Len() == 0 && from.Len() == 0 {
			return
		}
		all := reflect.MakeMap(to.Type())
		for _, key := range append(to.MapKeys(), from.MapKeys()...) {
			a, b := reflect.New(to.Type().Elem()).Elem(), reflect.Zero(to.Type().Elem())
			if n := to.MapIndex(key); n.IsValid() {
				a.Set(n)
			}
			if n := from.MapIndex(key); n.IsValid() {
				b = n
			}
			combine(a, b, op)
			all.SetMapIndex(key, a)
		}
		to.Set(all)
	default: // not a counter
	}
}
