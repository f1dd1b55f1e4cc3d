// Package bench compares ways to carry the connections of ordinary programs: on
// hosts that it makes out of network namespaces, side by side, in interleaved
// rounds. `make bench`, `make bench-quick` and `smcgw-lab bench` are it.
//
// It exists because one number says nothing on a machine that does something
// else as well: what counts is the ratio of two ways within the same round.
// Every way has hosts of its own, with its own gateways (or proxies, or
// nothing), its own control groups, so that the eBPF programs of one way do not
// run for another, and its own cable; the congestion control is the same
// everywhere. All that are compared are up all the time, so that rounds do
// interleave.
//
// A run counts only if it was what it claims to be: the gateways' counters are
// read before and after, and a connection that went another way makes the run a
// failed one, a NaN, never a number of another variant.
//
// What is measured is a table (works.go): a load, which is a program and the numbers that it
// gives, the ways it is done, and how often. The loads are well-known programs, and two of our
// own for what none of those measures: connect(2) alone, and a stream of the soft device.
//
// Where the time goes is measured separately by perf, after the rounds, in runs that give no
// figures.
//
// The trap: our programs and those of package apps are this binary itself, started again; its main
// must call apps.Init with [Apps] first.
package bench
