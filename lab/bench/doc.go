// Package bench compares ways to carry the connections of ordinary programs, on hosts that it makes from network
// namespaces, side by side, in interleaved rounds. `make bench`, `make bench-quick` and `smcgw-lab bench` use it.
//
// A single number means nothing on a machine that also does other things; what counts is the ratio of two ways within
// the same round. Every way has its own hosts, with its own gateways (or proxies, or nothing), its own cable, and its
// own cgroups, so that the eBPF programs of one way do not run for another. The congestion control is the same
// everywhere. Everything that is compared is up all the time, so that rounds can interleave.
//
// A run counts only if it was what it claims to be. The gateways' counters are read before and after, and if a
// connection took another way, the run fails and yields NaN rather than a number of another variant.
//
// What is measured is a table (works.go): a load, which is a program and the numbers that it yields, the ways to do it,
// and how often. The loads are well-known programs, and two of our own for what none of those measures: connect(2)
// alone, and a stream of the soft device.
//
// Profiles by perf, which show where the time goes, are separate: they are made after the rounds, in runs that yield no
// figures.
//
// Our programs and those of package apps are this binary itself, started again, so its main must call apps.Init with
// [Apps] first.
package bench
