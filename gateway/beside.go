package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/negotiate"
)

// exclusive is a fabric that only one gateway of a host can have.
type exclusive interface {
	// giveUp ends the device. Connections it carries go on without it or end,
	// handshakes are given back.
	giveUp() error
	// reclaim opens the device again.
	reclaim() error
}

// Neighbour implements admin.Control. It fails where another takeover would make three
// gateways, with ErrDraining, together with the answer, if this one drains itself.
func (g *gateway) Neighbour() (ebpf.Neighbour, error) {
	if g.host.Beside == nil {
		return ebpf.Neighbour{}, admin.ErrNoTakeover
	}
	n, err := g.host.Beside.Neighbour()
	if err == nil && (g.host.Beside.HasNeighbour() || g.drainer.Draining()) {
		err = admin.ErrDraining
	}
	return n, err
}

// Yield implements admin.Control.
func (g *gateway) Yield() error {
	if err := g.host.Beside.Retire(); err != nil {
		return err
	}
	g.closeDatagrams()
	for _, fb := range g.fabrics {
		if x, ok := fb.(exclusive); ok {
			if err := x.giveUp(); err != nil {
				return fmt.Errorf("give up device: %w", err)
			}
		}
	}
	return nil
}

// TakeBack implements admin.Control.
func (g *gateway) TakeBack() error {
	var errs []error
	for _, fb := range g.fabrics {
		if x, ok := fb.(exclusive); ok {
			errs = append(errs, x.reclaim())
		}
	}
	g.openDatagrams()
	return errors.Join(append(errs, g.host.Beside.Activate())...)
}

// errYielded is why nothing new can be made of a device.
var errYielded = errors.New("left to the gateway that takes over")

// leaveCarrier ends the use of a device: connections it carries go on over the
// relay, handshakes come to their end first, within their own time. hard: what is
// left is given back or reset.
func (g *gateway) leaveCarrier(kind negotiate.CarrierKind, hard bool) {
	for _, f := range g.all() {
		switch c := f.carryOf(kind); {
		case c == nil:
		case hard:
			f.drain(negotiate.ReasonDrained)
		case f.getState() >= StateCarrying:
			c.s.Post(func() { c.demote(negotiate.ReasonDrained.String()) })
		}
	}
}

// giveUpPatience bounds how long connections may take to leave a device, and then
// how long it may take to reset those that do not.
const giveUpPatience = 5 * time.Second

// giveUp implements exclusive.
func (sf *softFabric) giveUp() error {
	sf.mu.Lock()
	sf.shut = true
	sf.mu.Unlock()
	start := time.Now()
	for sf.busy() { // again and again: a handshake may have been under way
		spent := time.Since(start)
		if spent > 2*giveUpPatience {
			return errors.New("connections do not leave it")
		}
		sf.g.leaveCarrier(negotiate.CarrierSoft, spent > giveUpPatience)
		time.Sleep(10 * time.Millisecond)
	}
	sf.mu.Lock()
	units := sf.units
	sf.units = nil
	clear(sf.byAddr)
	var errs []error
	for k, p := range sf.peers {
		delete(sf.peers, k)
		if p.users == 0 {
			errs = append(errs, p.close())
			continue
		}
		sf.former[p] = struct{}{} // bytes of it may be sent again, by the relay
	}
	sf.mu.Unlock()
	for _, u := range units {
		u.undrive()
		errs = append(errs, u.close())
	}
	return errors.Join(errs...)
}

// reclaim implements exclusive.
func (sf *softFabric) reclaim() error {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	if !sf.shut {
		return nil
	}
	sf.shut = false
	if len(sf.units) > 0 {
		return nil // it was never given up
	}
	return sf.extend()
}

// busy reports whether a flow has a queue pair.
func (sf *softFabric) busy() bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	return sf.pairs > 0
}

// undrive takes a device away from shards that run. No flow uses it.
func (d *driven) undrive() {
	for i, s := range d.g.shards {
		s.Call(func() {
			s.DropQueue(d.queues[i])
			s.DropDriver(d.drivers[i])
		})
	}
}
