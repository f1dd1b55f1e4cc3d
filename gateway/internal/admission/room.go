package admission

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/negotiate"
)

// Room tells the programs whether peers may begin connections. An offer they leave to the
// kernel costs its client nothing, while one for which there is no room after its
// proof has to be declined.
type Room struct {
	Tell    func(reason uint8) error // the programs
	Lacking func() negotiate.Reason  // why there is none for another connection of a peer
	Log     *slog.Logger

	now atomic.Uint32 // negotiate.Reason: why they may not, as the programs know it
	mu  sync.Mutex    // held while that changes
}

// Note is due when flows have come or gone. The caller holds no lock.
func (r *Room) Note() {
	if uint32(r.Lacking()) == r.now.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	why := r.Lacking()
	if uint32(why) == r.now.Load() {
		return
	}
	if err := r.Tell(uint8(why)); err != nil {
		r.Log.Debug("room for connections of peers", "error", err)
		return
	}
	r.now.Store(uint32(why))
}
