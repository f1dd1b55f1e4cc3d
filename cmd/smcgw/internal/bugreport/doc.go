// Package bugreport collects what a report about a gateway needs in one archive: what the daemon reports, what doctor
// found, and what the kernel knows of its programs.
//
// A report that lacks one of them takes another round of questions, and what an operator sends to others must not
// contain keys. So the package reads a list of parts, each bounded, and removes every secret that it knows from every
// part, wherever it came from.
//
// The trap: the archive contains addresses, names of rules and ports. They are what a report is about, and may be
// confidential.
package bugreport
