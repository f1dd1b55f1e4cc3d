// Package process is the gateway as a process of its host: its privileges, the
// descriptors that it inherits or hands on, its service manager, log and garbage
// collector. It knows nothing of connections. The trap: [Confine] needs privileges
// that it then gives up, so it comes before everything else.
package process
