// Package doctor examines a host: whether it has what a gateway needs, what would keep connections native on it, and
// what to do about both.
//
// Most of that can be determined before a gateway runs, and the kernel's own errors name neither the cause nor the
// remedy. The package changes nothing and needs no daemon; if one answers, its answers count more than conclusions
// about the host.
//
// The checks are one table ([Examine]). Each uses the [Probes], which tests build from a tree of files and a few
// answers.
//
// The trap: a process sees the host through its own namespaces and rights. What it may not see is not missing: such a
// check reports that it could not look.
package doctor
