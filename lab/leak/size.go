package leak

import "reflect"

// SizeAtMost fails the test if a value of type T takes more than the given bytes. It bounds the heap memory of every
// idle connection; what is rarely needed belongs in an object that is created on first use. bytes should be a size
// class of the allocator. Objects above 512 bytes that contain pointers take one word more.
func SizeAtMost[T any](t TB, bytes uintptr) {
	t.Helper()
	if of := reflect.TypeFor[T](); of.Size() > bytes {
		t.Errorf("%v has %d bytes, more than %d", of, of.Size(), bytes)
	}
}
