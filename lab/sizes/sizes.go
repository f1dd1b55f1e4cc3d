package sizes

import (
	"reflect"
	"testing"
)

// AtMost fails the test if a value of type T takes more bytes.
func AtMost[T any](t testing.TB, bytes uintptr) {
	t.Helper()
	if of := reflect.TypeFor[T](); of.Size() > bytes {
		t.Errorf("%v has %d bytes, more than %d", of, of.Size(), bytes)
	}
}
