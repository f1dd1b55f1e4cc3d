// Package demo shows what smcgw does: first programs of this machine promoted to
// shared memory by smcgw run, without any privilege; then hosts it makes for the purpose: three
// hosts with gateways, one of which shares no memory with the others, and a plain one, ordinary programs on them that contain
// nothing of ours, and a table of what happened, each line with what had been
// expected.
//
// It exists because the first question about a transparent gateway is whether
// it really is transparent: the demonstration kills a gateway in the middle and
// shows the next connection succeed. It measures beside itself: every number
// stands next to the same work over direct TCP, taken in alternating rounds.
//
// It is no benchmark: few short rounds on a machine that also runs both ends.
//
// The trap: the programs are this binary itself, started again; its main must
// call apps.Init first.
package demo
