// Package faults are the faults that tests inject into a gateway by its environment,
// because nothing outside of the process can: a panic in the work for a connection, a
// connection or a takeover that stays at a step. They are no configuration; status
// lists those that are set. The trap: what looks like a knob and is none is an error,
// or a test would pass because of a typing mistake.
package faults
