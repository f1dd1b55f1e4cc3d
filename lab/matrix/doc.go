// Package matrix decides which cells of a fault matrix one run tests.
//
// A matrix is what can go wrong, times when, times where. That is too much for every run, and a fixed selection would
// never test the rest. So a run draws its cells, and everything else that is random, from a seed, which it prints:
//
//	for _, c := range matrix.Cells(t, cells, 3) { ... }
//	rng := matrix.Rand(t)
//
// SMCGW_SEED repeats a run, whichever tests are selected: every test has its own random numbers, made from the seed and
// its name. SMCGW_FAULTS=all runs every cell (`make faults`).
package matrix
