package carrier

import "time"

// watcher keeps probing the peers of a device for signs of life.
type watcher struct {
	kick chan struct{} // a peer is to be probed before the next turn
}

// newWatcher makes a watcher that does not run yet.
func newWatcher() watcher { return watcher{make(chan struct{}, 1)} }

// askSoon makes run continue before its next turn. It never blocks.
func (w watcher) askSoon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run probes all peers until stop is closed, and calls forget once a turn.
func (w watcher) run(stop <-chan struct{}, peers func() []*farPeer, forget func(now time.Time)) {
	tick := time.NewTicker(KeepaliveTurn)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			forget(now)
		case <-w.kick:
			time.Sleep(keepalivePause)
		}
		for _, p := range peers() {
			p.turn()
		}
	}
}
