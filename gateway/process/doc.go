// Package process is what a gateway is to its host: a process with few privileges,
// descriptors that it inherits or hands on, a service manager that watches it, a log
// and a garbage collector. It knows nothing of connections. The trap: [Confine]
// needs privileges that it then gives up, so it comes before everything else.
package process
