// Package leak fails tests that leave goroutines or file descriptors behind.
//
// A gateway that leaks one of either per connection works in every test and
// dies in production, so every package's TestMain ends in [Main]:
//
//	func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
//
// What every idle connection has of the heap is bounded too, by [SizeAtMost].
//
// The trap: what is closed asynchronously needs a moment, which the checks
// give; what is closed by a finalizer only is counted as a leak, and is one.
package leak
