package matrix

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	// SeedVariable is the environment variable with the seed of a run, a decimal number.
	SeedVariable = "SMCGW_SEED"
	// WholeVariable is the environment variable that requests every cell, with the value all.
	WholeVariable = "SMCGW_FAULTS"
)

// Whole reports whether every cell is to be tested.
func Whole() bool { return os.Getenv(WholeVariable) == "all" }

// runSeed is the seed of this run: the given one, or one derived from the time.
var runSeed = sync.OnceValues(func() (uint64, error) {
	if text := os.Getenv(SeedVariable); text != "" {
		return strconv.ParseUint(text, 10, 64)
	}
	return uint64(time.Now().UnixNano()) % 1_000_000, nil
})

// Seed returns the seed of the run, and logs how to repeat the run.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := runSeed()
	if err != nil {
		t.Fatalf("%s: %v", SeedVariable, err)
	}
	t.Logf("%s=%d repeats %s", SeedVariable, seed, t.Name())
	return seed
}

// Rand returns random numbers that depend only on the seed of the run and the name of the test. They are not safe for
// concurrent use.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return of(Seed(t), t.Name())
}

func of(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Cells returns the cells to test, in their order: all of them if [Whole], or else n of them, drawn by the seed.
func Cells[T any](t testing.TB, cells []T, n int) []T {
	t.Helper()
	if Whole() {
		return cells
	}
	return draw(Rand(t), cells, n)
}

func draw[T any](rng *rand.Rand, cells []T, n int) []T {
	picked := rng.Perm(len(cells))[:min(n, len(cells))]
	slices.Sort(picked)
	out := make([]T, 0, len(picked))
	for _, i := range picked {
		out = append(out, cells[i])
	}
	return out
}
