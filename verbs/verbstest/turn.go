package verbstest

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// turn drives both sides once and collects completions and events.
func (e *env) turn() bool {
	worked := false
	for _, d := range e.ends() {
		w, _ := d.Driver.Progress(time.Now())
		n := len(d.wcs) + len(d.recvs) + len(d.events)
		d.wcs = d.poll(d.scq, d.wcs)
		d.recvs = d.poll(d.rcq, d.recvs)
		d.Driver.Flush()
		for ev, ok := d.Device.Async().Poll(); ok; ev, ok = d.Device.Async().Poll() {
			d.events = append(d.events, ev)
		}
		worked = worked || w || n != len(d.wcs)+len(d.recvs)+len(d.events)
	}
	return worked
}

func (d *end) poll(cq verbs.CQ, wcs []verbs.WC) []verbs.WC {
	var buf [4]verbs.WC
	for {
		n, err := cq.Poll(buf[:])
		d.e.NoError(err)
		wcs = append(wcs, buf[:n]...)
		if n < len(buf) {
			return wcs
		}
	}
}

// pause lets the network and other threads run.
func pause() { time.Sleep(50 * time.Microsecond) }

// patience bounds the wait for what must happen, on a machine of any speed.
func (e *env) patience() time.Duration {
	if e.pair.Patience > 0 {
		return e.pair.Patience
	}
	return 30 * time.Second
}

// until drives both sides until cond holds.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(e.patience()); !cond(); {
		if !e.turn() {
			e.True(time.Now().Before(deadline), "never: %s", what)
			pause()
		}
	}
}

// Settling: how long nothing may move until everything counts as done, and how long to wait for that, since a requester
// that receives RNR NAKs never rests. Both are far longer than a datagram takes within a host, and shorter than a
// retransmission timer that a test would have to wait for anyway.
const (
	quietTime  = 2 * time.Millisecond
	settleTime = 25 * time.Millisecond
)

// settle drives both sides until nothing moves for a while.
func (e *env) settle() {
	start := time.Now()
	last := start
	for n := 0; n < 20 || time.Since(last) < quietTime; n++ {
		now := time.Now()
		if now.Sub(start) > settleTime {
			return
		}
		if e.turn() {
			last, n = now, 0
		}
		pause()
	}
}

// sent and received wait for the n-th completion and return it.
func (d *end) sent(n int) verbs.WC {
	d.e.t.Helper()
	d.e.until("send completion", func() bool { return len(d.wcs) >= n })
	return d.wcs[n-1]
}

func (d *end) received(n int) verbs.WC {
	d.e.t.Helper()
	d.e.until("receive completion", func() bool { return len(d.recvs) >= n })
	return d.recvs[n-1]
}

// raised waits for an asynchronous event and removes it.
func (d *end) raised(want verbs.AsyncEvent) {
	d.e.t.Helper()
	d.e.until("event "+want.Type.String(), func() bool { return d.take(want) })
}

func (d *end) take(want verbs.AsyncEvent) bool {
	for i, ev := range d.events {
		if ev == want {
			d.events = append(d.events[:i:i], d.events[i+1:]...)
			return true
		}
	}
	return false
}
