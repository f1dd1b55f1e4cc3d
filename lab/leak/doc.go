// Package leak fails tests that leave goroutines or file descriptors behind.
//
// A gateway that leaks one of either per connection passes every test and dies in production, so every package's
// TestMain ends with [Main]:
//
//	func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
//
// [SizeAtMost] bounds the heap memory of every idle connection, too.
//
// What is closed asynchronously needs a moment, which the checks allow. What only a finalizer closes counts as a leak,
// and is one.
package leak
