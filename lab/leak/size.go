package leak

import "reflect"

// SizeAtMost fails the test if a value of type T takes more bytes: it bounds what every idle
// connection has of the heap. What is rare belongs in an object that its first use makes. The
// bound is a class that the allocator rounds up to, and what is larger than 512 bytes and has
// pointers takes a word more.
func SizeAtMost[T any](t TB, bytes uintptr) {
	t.Helper()
	if of := reflect.TypeFor[T](); of.Size() > bytes {
		t.Errorf("%v has %d bytes, more than %d", of, of.Size(), bytes)
	}
}
