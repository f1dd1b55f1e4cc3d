package shm

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// warden is the goroutine that frees loops stuck in ringing a bell. The flag that keeps a write to an eventfd from
// blocking is shared with the peer: a peer that clears it and fills the counter blocks the ringing goroutine. A ring
// that takes longer than wardenTurn ends the peer, and the warden drains the counter until the ring returns.
type warden struct {
	ringers []*ringing
	stop    chan struct{}
	ended   sync.WaitGroup
}

// wardenTurn is how often the warden looks, wardenPause how long it waits after freeing a loop.
const (
	wardenTurn  = 100 * time.Millisecond
	wardenPause = time.Millisecond
	wardenTries = 50
)

// ringing holds the bell that a loop, or the janitor, is ringing at the moment.
type ringing struct {
	at atomic.Pointer[target]
}

// newWarden starts the warden of a device that has its janitor and all its vectors.
func newWarden(d *Device) *warden {
	w := &warden{ringers: d.ringers(), stop: make(chan struct{})}
	w.ended.Go(w.run)
	return w
}

func (w *warden) close() {
	close(w.stop)
	w.ended.Wait()
}

func (w *warden) run() {
	tick := time.NewTicker(wardenTurn)
	defer tick.Stop()
	last := map[*ringing]*target{}
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		for _, r := range w.ringers {
			t := r.at.Load()
			if t != nil && last[r] == t {
				w.free(r, t)
			}
			last[r] = t
		}
	}
}

// free ends a peer whose bell blocks, and the ring. It might be a new ring of the same bell each time, which is
// harmless: then there is nothing to drain, or one bell too many.
func (w *warden) free(r *ringing, t *target) {
	p := t.peer
	if !p.hold() {
		return
	}
	defer p.unref()
	for try := 0; r.at.Load() == t && try < wardenTries; try++ {
		if full(t.bell) {
			p.violation("doorbell that blocks")
			drain(t.bell)
		}
		time.Sleep(wardenPause)
	}
}

// full reports whether a write to an eventfd would block.
func full(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// drain empties an eventfd and makes it non-blocking, without blocking.
func drain(fd int) {
	_ = unix.SetNonblock(fd, true)
	_, _ = unix.Preadv2(fd, [][]byte{make([]byte, 8)}, -1, unix.RWF_NOWAIT)
}

// ringers returns the state of all ringing goroutines: the janitor and the vectors.
func (d *Device) ringers() []*ringing {
	list := []*ringing{&d.janitor.ringing}
	for _, v := range d.vectors {
		list = append(list, &v.ringing)
	}
	return list
}

// hold keeps the memory mapped and the bells open; it returns false if they are gone.
func (p *Peer) hold() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refs == 0 {
		return false
	}
	p.refs++
	return true
}
