package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/config"
)

// awakeEvery is how often the wire legs of busy flows speak. Firewalls that forget
// connections do so after some minutes.
const awakeEvery = time.Minute

// Awake keeps the wire legs of busy flows known to the firewalls on the way. Natively
// it is the bytes that do; those of a flow on a device go another way, and its wire
// leg would be forgotten although the connection is never idle: then END and HAVE are
// lost, or answered by a reset. A flow that is idle natively is forgotten here, too.
// Its methods are for one goroutine.
type Awake struct {
	last  time.Time
	moved map[uint64]uint64 // bytes both ways as of the last time, by flow id: an ended flow must not be kept
}

// Tick is called every now and then, with the connections that there are.
func (a *Awake) Tick(now time.Time, all func() []*Flow) {
	for _, f := range a.tick(now, all) {
		f.post(f.ask)
	}
}

// tick returns the flows whose legs are to speak.
func (a *Awake) tick(now time.Time, flows func() []*Flow) (speak []*Flow) {
	if now.Sub(a.last) < awakeEvery {
		return nil
	}
	a.last = now
	moved := make(map[uint64]uint64, len(a.moved))
	for _, f := range flows() {
		if c := f.view().carrier; c == config.CarrierNone || c == config.CarrierRelay {
			continue // nothing is carried, or by the wire leg itself
		}
		moved[f.ID] = f.tx.Load() + f.rx.Load()
		if moved[f.ID] != a.moved[f.ID] {
			speak = append(speak, f)
		}
	}
	a.moved = moved
	return speak
}
