// Package bench measures in alternating rounds of one run. What counts is the
// ratio; the machine is shared. There are whole paths, ordinary programs on hosts
// of a test network over direct TCP and carried (bulk_test.go), and the soft
// device by itself beside TCP, UDP and raw datagrams, with programs of package
// load in processes of their own (soft_test.go, fair_test.go); and streams of package
// rsocket in such processes (rsocket_test.go).
//
//	go test -run '^$' -bench . -benchtime 10x ./tests/bench
//
// SMCGW_PROFILE=FILE records the whole machine with perf during the carried
// rounds; SMCGW_PPROF=DIR writes CPU profiles of both sides of the soft device.
//
// Its one test is that a soft stream and
// the kernel's TCP share a line. The trap: a benchmark of one round (the default
// of -benchtime) says little on a machine that does something else as well.
package bench
