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

// monitor follows devices, addresses, cgroups and rp_filter, and keeps our routing rules. It has a thread in
// the namespace of the datapath, which dies with it.
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
	removed, err := watchRouting(d.cfg, m.quit)
	if err != nil {
		close(m.quit)
		return err
	}
	ready := make(chan error, 1)
	go d.runMonitor(m, links, addrs, removed, ready)
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
func (d *Datapath) runMonitor(m *monitor, links chan netlink.LinkUpdate, addrs chan netlink.AddrUpdate, removed <-chan struct{}, ready chan<- error) {
	defer close(m.done)
	defer drain(links, addrs, removed)
	runtime.LockOSThread()
	err := enterNamespace(d.ns)
	ready <- err
	if err != nil {
		<-m.quit
		return
	}
	defer d.restoreSysctls()
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
		case _, ok := <-removed:
			if !ok {
				removed = nil
				continue
			}
			d.repairRouting(true)
		case <-due:
			due = nil
			d.follow()
		case <-tick.C:
			d.repairRouting(false)
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
func drain(links chan netlink.LinkUpdate, addrs chan netlink.AddrUpdate, removed <-chan struct{}) {
	for links != nil || addrs != nil || removed != nil {
		select {
		case _, ok := <-links:
			if !ok {
				links = nil
			}
		case _, ok := <-addrs:
			if !ok {
				addrs = nil
			}
		case _, ok := <-removed:
			if !ok {
				removed = nil
			}
		}
	}
}

// repairRouting puts back rules and routes that others removed.
func (d *Datapath) repairRouting(routes bool) {
	if err := d.routing.repair(d.appIndex, d.loIndex, routes, d.log); err != nil {
		d.log.Warn("routing not repaired", "error", err)
	}
}

// follow brings everything up to date.
func (d *Datapath) follow() {
	err := errors.Join(d.followNeighbour(), d.sync(), d.checkRPFilter(), d.refreshCgroups(), d.closeDatagrams())
	if err != nil {
		d.log.Warn("datapath not up to date", "error", err)
	}
}

// restoreSysctls undoes what outlives the devices, unless that is another's duty.
func (d *Datapath) restoreSysctls() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.retired {
		return
	}
	for key, old := range d.restore {
		if _, err := writeSysctl(key, old); err != nil {
			d.log.Warn("sysctl not restored", "key", key, "error", err)
		}
	}
}
