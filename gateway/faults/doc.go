// Package faults names the places in a gateway where a test can put a fault that
// nothing outside of the process can make: a panic in the work for a connection, a
// connection or a takeover that stays at a step.
//
// It has the places only. Package lab/faults reads from the environment which fault
// is where, for a smcgw that tests build; the smcgw for hosts has none.
//
// The trap: a step that is never called is one that no test can wait for. A new
// step needs its call in the gateway, not only its name here.
package faults
