package conn

import "github.com/smcgw/smcgw/gateway/report"

const (
	// awakeTicks is after how many ticks, a second apart, the wire leg of a busy flow speaks again at the latest. Firewalls
	// that forget connections do so after some minutes.
	awakeTicks = 60
	// awakeFew is how many connections there may be for each to have every tick. With more the ticks are shared out: a gateway
	// whose legs all spoke at once would keep its shards, and its peer's, from everything else.
	awakeFew = 32
)

// Awake keeps the wire legs of busy flows known to the firewalls on the way. Natively
// it is the bytes that do; those of a flow on a device go another way, and its wire
// leg would be forgotten although the connection is never idle: then END and HAVE are
// lost, or answered by a reset. A flow that is idle natively is forgotten here, too.
// Its methods are for one goroutine.
type Awake struct {
	ticks uint64
	moved map[uint64]uint64 // bytes both ways when the flow was looked at last, by its id
}

// Tick is called every second, with the connections that there are.
func (a *Awake) Tick(all []*Flow) {
	for _, f := range a.tick(all) {
		f.post(f.ask)
	}
}

// tick returns the flows whose legs are to speak: those whose turn it is and that have moved bytes since their last.
func (a *Awake) tick(all []*Flow) (speak []*Flow) {
	a.ticks++
	before := a.moved
	if a.ticks%awakeTicks == 1 { // those that have ended are forgotten
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
			continue // nothing is carried, or by the wire leg itself
		}
		now := f.tx.Load() + f.rx.Load()
		if a.moved[f.ID] = now; known && now != last {
			speak = append(speak, f)
		}
	}
	return speak
}
