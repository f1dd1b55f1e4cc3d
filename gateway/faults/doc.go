// Package faults names the places in a gateway where a test can inject a fault that nothing
// outside the process can cause: a panic in the work for a connection, or a connection or a
// takeover that is held at a step.
//
// It defines only the places. Package lab/faults reads from the environment which fault to
// inject where, in a smcgw built for tests; the production smcgw has none.
//
// The trap: no test can wait for a step that is never called. A new step needs a call in the
// gateway, not only a name here.
package faults
