package process

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbageFloor is how much garbage may gather before it is collected, however
// little lives. The heap of a gateway is small and setting connections up makes
// most of its garbage: by the default it would be collected for every few
// hundred of them, which costs a fifth of their rate.
const garbageFloor = 32 << 20

// freePause is the least time between two returns of memory to the system.
const freePause = 10 * time.Second

// Garbage keeps the collector's percentage at what garbageFloor asks for, at least
// the default of 100, and tells when memory is to be returned to the system. The
// zero value is ready to use.
type Garbage struct {
	percent int

	released int64 // by the pool, as of the last return
	freed    time.Time
}

// Due reports whether so much registered memory has been released since it last
// did that the system should have it back: some devices take it from the heap, and
// an idle process collects its garbage every two minutes only. released only grows.
func (g *Garbage) Due(released int64, now time.Time) bool {
	if released-g.released < garbageFloor || now.Sub(g.freed) < freePause {
		return false
	}
	g.released, g.freed = released, now
	return true
}

// Tune looks at the heap. It leaves the collector alone where GOGC says how it is
// to be.
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
	if g.percent == 0 || want*4 < g.percent*3 || want*3 > g.percent*4 { // each change stops the world
		g.percent = want
		debug.SetGCPercent(want)
	}
}

// garbagePercent is the percentage of what lives that may gather as garbage. The
// smallest heap there is, 4 MiB, is multiplied by it as well: hence its limit.
func garbagePercent(live uint64) int {
	return int(min(max(100, garbageFloor*100/max(live, 1)), 800))
}
