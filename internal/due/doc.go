// Package due keeps what is to happen at a time, the earliest first: a [Queue] of what happens once, and [Timers] that
// their owners set again and stop. It reads no clock, and is not safe for concurrent use.
package due
