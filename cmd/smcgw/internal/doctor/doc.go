// Package doctor examines a host: whether it has what a gateway needs, what will keep
// connections native on it, and what to do about either.
//
// It exists because most of that is known before a gateway runs, and because the kernel's
// own errors name neither the cause nor the remedy. It changes nothing and needs no
// daemon; where one answers, its word counts more than a guess about the host.
//
// The checks are one table ([Examine]). Each asks the [Probes], which tests make of a tree
// of files and a few answers.
//
// The trap: a process sees the host through its own namespaces and rights. What it may not
// see is not missing: such a check says that it could not look.
package doctor
