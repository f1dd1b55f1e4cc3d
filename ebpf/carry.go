package ebpf

import (
	"errors"
	"fmt"
	"os"
	"slices"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/sockdiag"
)

// carriage is the part of a datapath that exists only while it carries, and its programs. If the datapath only counts,
// only objs is set.
type carriage struct {
	counting            bool
	objs                *objects
	appTUN, wireTUN     int              // descriptors
	appIndex, wireIndex int              // interfaces
	pair                netlink.Link     // the host veth; nil if there is none yet
	hostDiag            *sockdiag.Client // for the applications' sockets
	legDiag, dumpDiag   *sockdiag.Client // for the legs: for single ones, and for all of them, which takes longer
	steering            []link.Link      // sk_lookup, host veth, app TUN, wire TUN: in order of attachment
}

func newCarriage(counting bool) carriage {
	return carriage{counting: counting, appTUN: -1, wireTUN: -1}
}

// endCarriage releases whatever c has. nl is a handle of its namespace.
func (c *carriage) endCarriage(nl *netlink.Handle) error {
	errs := []error{closeLinks(c.steering), c.removePair(nl)}
	if c.hostDiag != nil {
		errs = append(errs, c.hostDiag.Close())
	}
	for _, fd := range []int{c.wireTUN, c.appTUN} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if c.objs != nil {
		errs = append(errs, c.objs.Close())
	}
	return errors.Join(errs...)
}

// Carry makes a counting datapath carry. It adds devices, legs and programs to what counts, and last replaces the
// programs that see connections, each atomically. Policy, peers and counters stay, and no connection is missed. On an
// error the datapath keeps counting as before. The caller then changes the mode.
func (d *Datapath) Carry() error { return d.remake(false) }

// Count undoes Carry. No connection may be carried any more, and the mode must not be ModeEnforce.
func (d *Datapath) Count() error { return d.remake(true) }

// Carrying reports whether the datapath carries, rather than counts.
func (d *Datapath) Carrying() bool {
	d.op.RLock()
	defer d.op.RUnlock()
	return !d.counting
}

// remake makes the thread of the monitor, which owns everything that follows the devices, run Carry or Count.
func (d *Datapath) remake(counting bool) error {
	t := task{do: func() error { return d.exchange(counting) }, done: make(chan error, 1)}
	select {
	case d.monitor.tasks <- t:
		return <-t.done
	case <-d.monitor.done:
		return fmt.Errorf("datapath: %w", os.ErrClosed)
	}
}

// exchange creates the other carriage and replaces the current one with it.
func (d *Datapath) exchange(counting bool) error {
	if d.counting == counting {
		return nil
	}
	next := &Datapath{cfg: d.cfg, log: d.log, ns: d.ns, nl: d.nl, carriage: newCarriage(counting)}
	steps := []step{{"programs", func() error { return next.load(d.objs) }}}
	if !counting {
		steps = slices.Concat(next.deviceSteps(), steps, []step{{"attach steering", next.attachSteering}})
	}
	if err := do(steps); err != nil {
		return errors.Join(err, next.endCarriage(d.nl))
	}
	d.swap(next)
	err := do(d.settleSteps())
	if err != nil && !counting {
		d.swap(next)
		err = errors.Join(err, do(d.settleSteps()))
	}
	return errors.Join(err, next.endCarriage(d.nl))
}

// settleSteps returns the steps that make devices and connections use the new carriage.
func (d *Datapath) settleSteps() []step {
	if d.counting {
		return []step{{"attach counting", d.reoffer}, {"devices", d.unattach}, {"devices", d.sync}}
	}
	return []step{{"devices", d.unattach}, {"devices", d.sync}, {"proof of legs", d.proveLegs}, {"attach offering", d.reoffer}}
}

// swap exchanges the carriages of d and with.
func (d *Datapath) swap(with *Datapath) {
	d.op.Lock()
	defer d.op.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.carriage, with.carriage = with.carriage, d.carriage
	if !d.counting {
		d.wireMTU.Store(defaultMTU)
	}
}

// reoffer replaces the programs that see connections with those of the new carriage.
func (d *Datapath) reoffer() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.counting && d.cfg.Mode != ModeObserve:
		return d.detachOffering()
	case len(d.offering) == 0:
		return d.attachOffering()
	}
	for i, o := range d.objs.offers() {
		if err := d.offering[i].Update(o.prog); err != nil {
			return fmt.Errorf("%s: %w", o.at, err)
		}
	}
	return nil
}

// unattach removes the programs of the old carriage from the devices.
func (d *Datapath) unattach() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, dev := range d.devices {
		errs = append(errs, dev.detach())
		dev.legs = newDevice(d.counting).legs
	}
	return errors.Join(errs...)
}

// shared returns the maps that survive a change of carriage: all but those of flows and datagrams, whose capacity
// depends on whether the datapath carries.
func (o *objects) shared() map[string]*bpf.Map {
	return map[string]*bpf.Map{
		"smcgw_peers": o.Peers, "smcgw_passed": o.Passed, "smcgw_own": o.Own, "smcgw_devices": o.Devices,
		"smcgw_control": o.Control, "smcgw_setups": o.SetUps, "smcgw_seen": o.Seen, "smcgw_compared": o.Compared,
		"smcgw_dgram_asked": o.DatagramAsked, "smcgw_beat": o.Beat, "smcgw_native": o.Native, "smcgw_decided": o.Decided,
		"smcgw_stats": o.Stats, "smcgw_events": o.Events, "smcgw_policy": o.Policy, "smcgw_lpm4": o.LPM4, "smcgw_lpm6": o.LPM6,
		"smcgw_ports": o.Ports, "smcgw_uids": o.UIDs, "smcgw_cgroups": o.Cgroups, ".bss": o.Globals,
	}
}
