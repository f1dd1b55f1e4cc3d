package gateway

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

// Beside is the part of the datapath by which two gateways share a host while one
// takes over from the other. It is *ebpf.Datapath on a real host; its rules are
// those of package ebpf.
type Beside interface {
	Neighbour() (ebpf.Neighbour, error)
	HasNeighbour() bool
	Retire() error
	Activate() error
}

// Neighbour describes the datapath of a gateway to one that is to start beside it.
type Neighbour = ebpf.Neighbour

// ErrNoTakeover is returned by a gateway whose host has no room for another one.
var ErrNoTakeover = errors.New("nobody can take over here")

// exclusive is a fabric that only one gateway of a host can have.
type exclusive interface {
	// giveUp ends the device. Connections it carries go on without it or end,
	// handshakes are given back.
	giveUp() error
	// reclaim opens the device again.
	reclaim() error
}

// Neighbour implements Control. It fails where another takeover would make three
// gateways, with ErrDraining, together with the answer, if this one drains itself.
func (g *gateway) Neighbour() (Neighbour, error) {
	if g.host.Beside == nil {
		return Neighbour{}, ErrNoTakeover
	}
	n, err := g.host.Beside.Neighbour()
	if err == nil && (g.host.Beside.HasNeighbour() || g.drainer.draining()) {
		err = ErrDraining
	}
	return n, err
}

// Yield implements Control.
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

// TakeBack implements Control.
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

// closeDatagrams ends the engine while the gateway goes on.
func (g *gateway) closeDatagrams() {
	e := g.dgrams.Load()
	if e == nil {
		return
	}
	e.close()
	e.s.Call(func() {
		e.closePorts()
		e.s.dropDriver(e)
	})
	g.dgrams.Store(nil)
}

// leaveCarrier ends the use of a device: handshakes that could use it are given
// back, connections it carries are reset.
func (g *gateway) leaveCarrier(kind negotiate.CarrierKind) {
	for _, f := range g.all() {
		switch c := f.carryOf(kind); {
		case c == nil:
		case f.getState() < StateCarrying:
			f.drain()
		default:
			f.abort(negotiate.ReasonDrained, false)
		}
	}
}

// giveUpPatience bounds how long connections may take to leave a device.
const giveUpPatience = 10 * time.Second

// giveUp implements exclusive.
func (sf *softFabric) giveUp() error {
	sf.mu.Lock()
	sf.shut = true
	sf.mu.Unlock()
	for deadline := time.Now().Add(giveUpPatience); ; time.Sleep(10 * time.Millisecond) {
		sf.g.leaveCarrier(negotiate.CarrierSoft) // again: a handshake may have been under way
		if !sf.used() {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("connections do not leave it")
		}
	}
	sf.mu.Lock()
	peers, units := sf.peers, sf.units
	sf.peers, sf.units = map[softKey]*softPeer{}, nil
	clear(sf.byAddr)
	sf.mu.Unlock()
	var errs []error
	for _, u := range units {
		u.undrive()
	}
	for _, p := range peers {
		errs = append(errs, p.close())
	}
	for _, u := range units {
		errs = append(errs, u.driven.close())
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

// used reports whether a flow has a queue pair.
func (sf *softFabric) used() bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	for _, p := range sf.peers {
		if p.users > 0 {
			return true
		}
	}
	return false
}

// undrive takes a device away from shards that run. No flow uses it.
func (d *driven) undrive() {
	for i, s := range d.g.shards {
		s.Call(func() {
			s.cqs = slices.DeleteFunc(s.cqs, func(q *flowCQ) bool { return q == d.queues[i] })
			s.dropDriver(d.drivers[i])
		})
	}
}
