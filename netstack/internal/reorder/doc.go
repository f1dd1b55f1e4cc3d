// Package reorder bounds the memory of segments that come before those in front of them.
//
// gVisor keeps such segments for each connection by itself, up to its receive buffer, repeated ones too, and counts their
// bytes, not the buffers that these are in. The package counts the buffers, of all connections of a stack together. It holds no
// segment. The trap: what it counts is at least what gVisor keeps, and can be more for as long as a gap is open.
package reorder
