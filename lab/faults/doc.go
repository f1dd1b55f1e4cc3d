// Package faults reads from the environment which faults a gateway is to have.
//
// Some faults cannot be caused from outside a process: a panic in the work for one connection, or a connection or
// takeover that stays at a step. Only a smcgw that is built with the tag smcgw_faults links this package:
//
//	SMCGW_DEBUG_PANIC=STEP:PORT[:COUNT],...   work for connections of that server port panics there
//	SMCGW_DEBUG_HOLD=STEP:PORT[:COUNT],...    they stay there until they are ended from outside
//	SMCGW_DEBUG_TAKEOVER=STEP                 a successor stays there
//	SMCGW_DEBUG_TRACE=PORT:FILE               a trace of the runtime, from the first step of any
//	                                          connection until one of that server port carries bytes
//
// Any other smcgw ignores these variables.
package faults
