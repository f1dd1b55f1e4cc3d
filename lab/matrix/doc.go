// Package matrix decides which cells of a fault matrix one run tests.
//
// A matrix is what can go wrong, times when, times where: too much for every
// run, and a fixed choice would leave the rest untested for good. So a run
// draws its cells, and everything else that is random, from a seed, which it
// prints:
//
//	for _, c := range matrix.Cells(t, cells, 3) { ... }
//	rng := matrix.Rand(t)
//
// SMCGW_SEED repeats a run, whichever tests are selected: every test has
// random numbers of its own, made of the seed and its name. SMCGW_FAULTS=all
// runs every cell (`make faults`).
package matrix
