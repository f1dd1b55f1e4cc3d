// Package demo shows what smcgw does. First it promotes programs of this machine to shared memory with smcgw run,
// without any privilege. Then it makes four hosts, three with gateways, one of which shares no memory with the others,
// and one without; runs ordinary programs on them; and prints a table of what happened next to what was expected.
//
// The first question about a transparent gateway is whether it really is transparent. So the demonstration kills a
// gateway during a transfer, and shows that the next connection succeeds. Every number is next to that of the same work
// over direct TCP, taken in alternating rounds.
//
// It is not a benchmark: there are few short rounds, on a machine that runs both ends.
//
// The programs are this binary itself, started again, so its main must call apps.Init first.
package demo
