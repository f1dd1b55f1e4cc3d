// Package suites runs test suites of other projects once natively and once with libsmcgw.so, which asks for every
// connection with its first call. Each test must have the same result both times. `make suites` runs it; otherwise it
// skips.
package suites
