package conn

import "github.com/smcgw/smcgw/gateway/report"

const (
	// awakeTicks bounds, in ticks of one second, how long the wire leg of a busy flow stays
	// quiet. Firewalls forget idle connections after some minutes.
	awakeTicks = 60
	// awakeFew is the number of connections below which each is looked at on every tick.
	// Beyond it the connections are spread over several ticks: if all wire legs spoke at
	// once, they would starve the shards of this gateway and of its peer.
	awakeFew = 32
)

// Awake keeps the firewalls on the path from forgetting the wire legs of busy flows. Natively
// the data itself does that. The data of a flow on a device takes another path, so its wire
// leg would be forgotten although the connection is never idle, and END and HAVE would be
// lost or answered by a reset. A flow that is idle is forgotten as it would be natively. The
// methods of Awake must be called from one goroutine.
type Awake struct {
	ticks uint64
	moved map[uint64]uint64 // by flow ID: bytes both ways at the last look
}

// Tick is called every second with all current connections.
func (a *Awake) Tick(all []*Flow) {
	for _, f := range a.tick(all) {
		f.post(f.ask)
	}
}

// tick returns the flows whose wire legs should speak: those whose turn it is and that moved
// bytes since their last turn.
func (a *Awake) tick(all []*Flow) (speak []*Flow) {
	a.ticks++
	before := a.moved
	if a.ticks%awakeTicks == 1 { // forget flows that have ended
		a.moved = make(map[uint64]uint64, len(all))
	}
	turns := min(awakeTicks, 1+uint64(len(all))/awakeFew)
	for _, f := range all {
		last, known := before[f.ID]
		if known && (f.ID+a.ticks)%turns != 0 {
			a.moved[f.ID] = last
			continue
		}
		if c := f.view().carrier; c == report.CarrierNone || c == report.CarrierRelay {
			continue // not carried, or carried by the wire leg itself
		}
		now := f.tx.Load() + f.rx.Load()
		if a.moved[f.ID] = now; known && now != last {
			speak = append(speak, f)
		}
	}
	return speak
}
