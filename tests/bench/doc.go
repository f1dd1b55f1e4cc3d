// Package bench measures whole paths: ordinary programs on hosts of a test
// network, over direct TCP and carried, in alternating rounds of one run. What
// counts is the ratio; the machine is shared.
//
//	go test -bench . -benchtime 10x ./tests/bench
//
// SMCGW_PROFILE=FILE records the whole machine with perf during the carried
// rounds.
package bench
