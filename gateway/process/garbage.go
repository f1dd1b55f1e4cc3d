package process

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbageFloor is how much garbage may accumulate before it is collected, however small the
// live heap is. A gateway's heap is small, and most of its garbage comes from setting up
// connections: with the default, a collection would run every few hundred connections, which
// costs a fifth of their rate.
const garbageFloor = 32 << 20

// freePause is the minimum time between two returns of memory to the system.
const freePause = 10 * time.Second

// Garbage keeps the collector's percentage at the value that garbageFloor requires, at least
// the default of 100, and tells when memory should be returned to the system. The zero value
// is ready to use.
type Garbage struct {
	percent int

	released int64 // by the pool, at the last return
	freed    time.Time
}

// Due reports whether enough registered memory has been released since the last return that
// the system should get it back: some devices take it from the heap, and an idle process
// collects its garbage only every two minutes. released must only grow.
func (g *Garbage) Due(released int64, now time.Time) bool {
	if released-g.released < garbageFloor || now.Sub(g.freed) < freePause {
		return false
	}
	g.released, g.freed = released, now
	return true
}

// Tune adjusts the percentage to the heap. It leaves the collector alone if GOGC is set.
func (g *Garbage) Tune() {
	if os.Getenv("GOGC") != "" {
		return
	}
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	want := garbagePercent(sample[0].Value.Uint64())
	if g.percent == 0 || want*4 < g.percent*3 || want*3 > g.percent*4 { // sparingly: each change stops the world
		g.percent = want
		debug.SetGCPercent(want)
	}
}

// garbagePercent returns the percentage of the live heap that may accumulate as garbage. It
// is limited, because the minimum heap of 4 MiB is multiplied by it as well.
func garbagePercent(live uint64) int {
	return int(min(max(100, garbageFloor*100/max(live, 1)), 800))
}
