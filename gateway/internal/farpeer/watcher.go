package farpeer

import "time"

// Watcher has the peers of a device give signs of life.
type Watcher struct {
	kick chan struct{} // a peer is to be asked before the next turn
}

// NewWatcher makes a watcher that does not run yet.
func NewWatcher() Watcher { return Watcher{make(chan struct{}, 1)} }

// AskSoon has Run go on before its next turn. It never blocks.
func (w Watcher) AskSoon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Run keeps an eye on all peers until stop is closed, and calls forget once a
// turn.
func (w Watcher) Run(stop <-chan struct{}, peers func() []*Peer, forget func(now time.Time)) {
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
