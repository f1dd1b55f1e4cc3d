// Package faults reads from the environment which faults a gateway is to have.
//
// It exists because some faults cannot be made from outside of a process: a panic
// in the work for one connection, a connection or a takeover that stays at a step.
// Only a smcgw that is built with the tag smcgw_faults links it:
//
//	SMCGW_DEBUG_PANIC=STEP:PORT[:COUNT],...   work for connections of that server port panics there
//	SMCGW_DEBUG_HOLD=STEP:PORT[:COUNT],...    they stay there until they are ended from outside
//	SMCGW_DEBUG_TAKEOVER=STEP                 a successor stays there
//	SMCGW_DEBUG_TRACE=PORT:FILE               a trace of the runtime, from the first step of any
//	                                          connection until one of that server port carries bytes
//
// The trap: any other smcgw takes no notice of these variables.
package faults
