// Package suites compares what suites that others wrote find with libsmcgw.so and natively: a suite is a row, run once
// as it is and once with the library, which asks for every connection with its first call. Each test of the suite has to
// have the result that it has natively. `make suites` runs it; elsewhere it skips.
package suites
