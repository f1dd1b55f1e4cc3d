// Package process is the gateway as a process of its host: its privileges, the descriptors
// that it inherits or passes on, its service manager, log and garbage collector. It knows
// nothing about connections. The trap: [Confine] needs privileges that it then gives up, so
// it must be called before everything else.
package process
