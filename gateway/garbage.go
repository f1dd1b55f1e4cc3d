package gateway

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// garbageFloor is how much garbage may gather before it is collected, however
// little lives. The heap of a gateway is small and setting connections up makes
// most of its garbage: by the default it would be collected for every few
// hundred of them, which costs a fifth of their rate.
const garbageFloor = 32 << 20

// garbage keeps the collector's percentage at what garbageFloor asks for, at least
// the default of 100. The zero value is ready to use.
type garbage struct{ percent int }

// tune looks at the heap. It leaves the collector alone where GOGC says how it is
// to be.
func (g *garbage) tune() {
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
