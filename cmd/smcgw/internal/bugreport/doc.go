// Package bugreport collects what a report about a gateway needs in one archive: what the
// daemon says, what doctor found, and what the kernel knows of its programs.
//
// It exists because a report that lacks one of them takes another round of questions, and
// because what an operator sends to others must hold no key. So it reads a list of parts,
// each bounded, and takes every secret that it knows out of every part, wherever it came
// from.
//
// The trap: addresses, names of rules and ports are in the archive. They are what a report
// is about, and may be confidential.
package bugreport
