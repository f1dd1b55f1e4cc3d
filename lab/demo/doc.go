// Package demo shows what smcgw does. First it promotes programs of this machine to
// shared memory by smcgw run, without any privilege. Then it makes four hosts, three with
// gateways, one of which shares no memory with the others, and a plain one; runs ordinary
// programs on them; and prints a table of what happened beside what was expected.
//
// It exists because the first question about a transparent gateway is whether
// it really is transparent: the demonstration kills a gateway in the middle and
// shows the next connection succeed. Every number stands next to that of the same work
// over direct TCP, taken in alternating rounds.
//
// It is no benchmark: few short rounds on a machine that also runs both ends.
//
// The trap: the programs are this binary itself, started again; its main must
// call apps.Init first.
package demo
