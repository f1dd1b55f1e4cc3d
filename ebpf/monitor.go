package ebpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// monitor follows devices, addresses and cgroups. It has a thread in the namespace
// of the datapath, which dies with it.
type monitor struct {
	quit, done chan struct{}
}

const (
	// settle collects the messages of one change.
	settle = 20 * time.Millisecond
	// refresh is for what sends no message.
	refresh = 2 * time.Second
)

// startMonitor starts the goroutine that owns later changes. It is called on a
// thread of the namespace, where the sockets of the subscriptions are made.
func (d *Datapath) startMonitor() error {
	m := &monitor{quit: make(chan struct{}), done: make(chan struct{})}
	links := make(chan netlink.LinkUpdate, 64)
	addrs := make(chan netlink.AddrUpdate, 64)
	if err := netlink.LinkSubscribe(links, m.quit); err != nil {
		return fmt.Errorf("link messages: %w", err)
	}
	if err := netlink.AddrSubscribe(addrs, m.quit); err != nil {
		close(m.quit)
		return fmt.Errorf("address messages: %w", err)
	}
	ready := make(chan error, 1)
	go d.runMonitor(m, links, addrs, ready)
	if err := <-ready; err != nil {
		return err
	}
	d.monitor = m
	return nil
}

// stop ends the goroutine and waits for it. A nil monitor was never started.
func (m *monitor) stop() {
	if m == nil {
		return
	}
	close(m.quit)
	<-m.done
}

// runMonitor is the goroutine. It never unlocks its thread, so the runtime ends
// the thread with it instead of reusing one in the wrong namespace.
func (d *Datapath) runMonitor(m *monitor, links chan netlink.LinkUpdate, addrs chan netlink.AddrUpdate, ready chan<- error) {
	defer close(m.done)
	defer drain(links, addrs)
	runtime.LockOSThread()
	err := enterNamespace(d.ns)
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
		case _, ok := <-links:
			if !ok {
				links = nil
			}
			due = time.After(settle)
		case _, ok := <-addrs:
			if !ok {
				addrs = nil
			}
			due = time.After(settle)
		case <-due:
			due = nil
			d.follow()
		case <-tick.C:
			d.follow()
		}
	}
}

// enterNamespace moves the thread to a namespace, unless it is there: moving
// takes CAP_SYS_ADMIN, which a gateway in its own namespace does not have.
func enterNamespace(ns *os.File) error {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if err := unix.Fstat(int(ns.Fd()), &there); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if here.Dev == there.Dev && here.Ino == there.Ino {
		return nil
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// drain lets the senders of subscriptions see that their socket is closed.
func drain(links chan netlink.LinkUpdate, addrs chan netlink.AddrUpdate) {
	for links != nil || addrs != nil {
		select {
		case _, ok := <-links:
			if !ok {
				links = nil
			}
		case _, ok := <-addrs:
			if !ok {
				addrs = nil
			}
		}
	}
}

// follow brings everything up to date.
func (d *Datapath) follow() {
	err := errors.Join(d.followNeighbour(), d.sync(), d.refreshCgroups(), d.closeDatagrams())
	if err != nil {
		d.log.Warn("datapath not up to date", "error", err)
	}
}
