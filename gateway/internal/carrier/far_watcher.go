package carrier

import "time"

// watcher has the peers of a device give signs of life.
type watcher struct {
	kick chan struct{} // a peer is to be asked before the next turn
}

// newWatcher makes a watcher that does not run yet.
func newWatcher() watcher { return watcher{make(chan struct{}, 1)} }

// askSoon has run go on before its next turn. It never blocks.
func (w watcher) askSoon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run keeps an eye on all peers until stop is closed, and calls forget once a
// turn.
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
