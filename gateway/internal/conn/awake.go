package conn

import "github.com/smcgw/smcgw/gateway/config"

// awakeRounds is over how many ticks, a second apart, the wire legs of busy flows speak once each. Firewalls that forget
// connections do so after some minutes. A gateway whose legs all spoke at once would keep its shards, and its peer's, from
// everything else.
const awakeRounds = 60

// Awake keeps the wire legs of busy flows known to the firewalls on the way. Natively
// it is the bytes that do; those of a flow on a device go another way, and its wire
// leg would be forgotten although the connection is never idle: then END and HAVE are
// lost, or answered by a reset. A flow that is idle natively is forgotten here, too.
// Its methods are for one goroutine.
type Awake struct {
	round uint64
	moved [awakeRounds]map[uint64]uint64 // by round: bytes both ways as of the last time, by flow id: an ended flow must not be kept
}

// Tick is called every second, with the connections that there are.
func (a *Awake) Tick(all []*Flow) {
	for _, f := range a.tick(all) {
		f.post(f.ask)
	}
}

// tick returns the flows whose legs are to speak: of those of this round.
func (a *Awake) tick(all []*Flow) (speak []*Flow) {
	a.round = (a.round + 1) % awakeRounds
	before := a.moved[a.round]
	moved := make(map[uint64]uint64, len(before))
	for _, f := range all {
		if f.ID%awakeRounds != a.round {
			continue
		}
		if c := f.view().carrier; c == config.CarrierNone || c == config.CarrierRelay {
			continue // nothing is carried, or by the wire leg itself
		}
		moved[f.ID] = f.tx.Load() + f.rx.Load()
		if moved[f.ID] != before[f.ID] {
			speak = append(speak, f)
		}
	}
	a.moved[a.round] = moved
	return speak
}
