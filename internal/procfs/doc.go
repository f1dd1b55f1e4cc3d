// Package procfs reads information about processes from /proc (proc(5)). It keeps nothing open.
//
// A process number may be reused by another process between two calls.
package procfs
