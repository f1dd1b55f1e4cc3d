package golden

import (
	"reflect"
	"testing"
)

// RoundTrip checks what a fuzz test wants of a parser and its encoder for any bytes: if parse accepts b, it also
// accepts what encode makes of the value, and returns an equal value. The bytes need not be the same, because a parser
// may skip what it does not know, and accept more forms than one.
//
// It returns the value and what encode has made of it, so that the caller can check more, and false if parse refuses b.
func RoundTrip[T any](t testing.TB, b []byte, parse func([]byte) (T, error), encode func(T) []byte) (v T, encoded []byte, ok bool) {
	t.Helper()
	v, err := parse(b)
	if err != nil {
		return v, nil, false
	}
	encoded = encode(v)
	again, err := parse(encoded)
	if err != nil {
		t.Fatalf("% x\nis read as %+v\nand written as % x,\nwhich is refused: %v", b, v, encoded, err)
	}
	if !reflect.DeepEqual(v, again) {
		t.Fatalf("% x\nis read as %+v\nand written as % x,\nwhich is read as %+v", b, v, encoded, again)
	}
	return v, encoded, true
}
