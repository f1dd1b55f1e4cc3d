// Package programs holds the small network programs that benchmarks run on the
// hosts of a test network where no usual tool measures the thing: connect(2)
// alone, connections that each carry one request, writes of one size, a chain
// of proxies in Go, and idle connections.
//
// It exists so that the programs contain nothing of a gateway. They are run as
// those of package apps are; Apps is their list, for [apps.Init]. Each client
// prints one [Result] as JSON.
//
// The trap: they measure with blocking system calls, a thread per connection.
// Times of goroutines would be times of Go's scheduler.
package programs
