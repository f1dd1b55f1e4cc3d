// Package shapers tells which connections cross a queueing discipline that shapes: the bytes of a connection in process
// would not be shaped. It reads routes, devices and disciplines (rtnetlink). It changes nothing, but that
// namespaces of programs get numbers in its own, as the kernel gives them.
package shapers
