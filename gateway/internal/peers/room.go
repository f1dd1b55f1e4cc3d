package peers

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/negotiate"
)

// Room tells the programs whether peers may begin connections. An offer that the programs leave to the kernel costs its
// client nothing, while one that lacks room only after its proof must be declined.
type Room struct {
	Tell    func(reason uint8) error // tells the programs
	Lacking func() negotiate.Reason  // why another connection of a peer has no room
	Log     *slog.Logger

	now atomic.Uint32 // negotiate.Reason that the programs know
	mu  sync.Mutex    // held while now changes
}

// Note must be called when flows have come or gone. The caller holds no lock.
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
