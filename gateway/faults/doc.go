// Package faults names the places in a gateway where a test can put a fault that
// nothing outside the process can cause: a panic in the work for a connection, a
// connection or a takeover that stays at a step.
//
// It has only the places. Package lab/faults reads from the environment which fault
// is where, for a smcgw that tests build; the smcgw for hosts has none.
//
// The trap: no test can wait for a step that is never called. A new step needs its
// call in the gateway, not only its name here.
package faults
