// Package profile says where processor time goes: it samples the machine with
// perf(1) and sorts the samples into a few items that a reader understands.
//
// It exists because a comparison says how much slower one way is than another,
// and not why. The stack of each sample is looked up in one ordered table of
// rules, [Classify], from the innermost function outwards: what is cheap to
// understand (a copy, a checksum) is told wherever it happens, and everything
// else by the part of the path it belongs to. The process it ran in is its
// [Role], which the caller knows.
//
// Reading what perf prints ([Parse]), sorting and counting do no I/O; only
// [Record] runs perf.
//
// The trap: samples are of a clock that ticks by interrupts (cpu-clock, since
// virtual machines have no counter of cycles). What runs with interrupts
// disabled is charged to the function that enables them again, so that the
// switch between tasks looks dearer, and what wakes them up cheaper, than it is.
package profile
