package ebpf

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// monitor follows devices, addresses and cgroups. It has a thread of its own in the namespace of the datapath.
type monitor struct {
	quit, done chan struct{}
	end        sync.Once
	tasks      chan task // to run on its thread
}

// task is a function to run once.
type task struct {
	do   func() error
	done chan error // buffered for one
}

const (
	// settle is the time to collect the messages of one change. It also limits how often the legs are proved when there
	// are many changes.
	settle = 20 * time.Millisecond
	// refresh is the interval for checking what sends no messages.
	refresh = 2 * time.Second
)

// startMonitor starts the goroutine that handles later changes. Call it on a thread of the namespace, where the
// subscriptions' sockets are created.
func (d *Datapath) startMonitor() error {
	m := &monitor{quit: make(chan struct{}), done: make(chan struct{}), tasks: make(chan task)}
	changes, err := netdev.Watch(m.quit)
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	go d.runMonitor(m, changes, ready)
	if err := <-ready; err != nil {
		close(m.quit)
		return err
	}
	d.monitor = m
	return nil
}

// stop ends the goroutine and waits for it. It may be called repeatedly, and on a nil monitor.
func (m *monitor) stop() {
	if m == nil {
		return
	}
	m.end.Do(func() { close(m.quit) })
	<-m.done
}

// runMonitor is the goroutine. It never unlocks its thread, so the runtime ends the thread with it rather than reusing
// it in the wrong namespace.
func (d *Datapath) runMonitor(m *monitor, changes <-chan struct{}, ready chan<- error) {
	defer close(m.done)
	defer func() {
		for range changes { // until its sockets are closed
		}
	}()
	runtime.LockOSThread()
	err := netdev.Enter(d.ns)
	ready <- err
	if err != nil {
		<-m.quit
		return
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-m.quit:
			return
		case <-changes:
			d.routes.Changed()
			due = soon(due)
		case <-d.again:
			due = soon(due)
		case t := <-m.tasks:
			t.done <- t.do()
		case <-due:
			due = nil
			d.follow(true)
			if wait := d.routes.Waits(); wait > 0 {
				due = time.After(wait)
			}
		case <-tick.C:
			d.follow(false)
		}
	}
}

// follow brings everything up to date. It also proves the legs if prove is set or a proof is due.
func (d *Datapath) follow(prove bool) {
	err := errors.Join(d.followNeighbour(), d.sync(), d.refreshCgroups(), d.closeDatagrams())
	prove = !d.counting && (prove || d.proofDue())
	err = errors.Join(err, d.followWays(prove))
	if prove {
		err = errors.Join(err, d.proveLegs())
	}
	if err != nil {
		d.log.Warn("datapath not up to date", "error", err)
	}
}

// soon returns due, or, if nil, a channel that fires when the messages of one change have been collected.
func soon(due <-chan time.Time) <-chan time.Time {
	if due != nil {
		return due
	}
	return time.After(settle)
}
