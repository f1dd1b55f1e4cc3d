// Package sizes bounds what every idle connection has of the heap: what is rare belongs in an object that its first
// use makes.
//
// The trap: a bound is a class that the allocator rounds up to, and what is larger than 512 bytes and has pointers takes
// a word more.
package sizes
