// Package procfs reads what the kernel tells of processes in /proc (proc(5)). It keeps nothing open.
//
// The trap: a process number can become another process's between two calls.
package procfs
