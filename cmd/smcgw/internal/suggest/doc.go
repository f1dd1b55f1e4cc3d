// Package suggest writes a configuration with rules for the services that a gateway has seen
// in the mode observe. The trap: what it prints has to pass "smcgw check".
package suggest
