// Package suites runs test suites of other projects natively and with libsmcgw.so, which asks the broker for every
// connection at its first call. Each test must have the same result both times. `make suites` runs it; otherwise it
// is skipped.
package suites
