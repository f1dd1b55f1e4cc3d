// Package shapers tells which connections cross a queueing discipline that shapes: the bytes of a connection in process
// would not be shaped. It reads routes, devices and disciplines (rtnetlink), and changes nothing.
package shapers
