package ebpf

import (
	"errors"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// ways is the state of followWays.
type ways struct {
	due  bool // something has changed since the last look
	pace netdev.Pace
}

// way has the addresses of a flow, its mark, the devices on which its packets arrive and leave, and what the
// application's socket is bound to: nothing (0), a device, or the master of a VRF.
type way struct {
	local, remote           netip.Addr
	mark, in, leaves, bound uint32
}

// followWays moves flows to another device when theirs is gone, is down, or no longer leads to the peer. The programs
// notice by themselves where an application sends (follow_way in egress.h), but one that waits for its peer sends
// nothing. A flow keeps a device that still leads to the peer, even if the host would now choose another one. It waits
// for a device to which the socket is bound, as the socket does.
func (d *Datapath) followWays(changed bool) error {
	w := &d.ways
	w.due = w.due || changed
	if !w.due || w.pace.Early() > 0 {
		return nil
	}
	w.due = false
	defer w.pace.Begin()()
	moved := map[way]way{}
	err := d.walk(func(k *smcgwFlowKey, v *smcgwFlow) bool {
		if live(State(v.Word)) {
			moved[wayOf(k, v)] = way{}
		}
		return true
	})
	for old := range moved {
		if now, ok := d.wayNow(old); ok {
			moved[old] = now
		} else {
			delete(moved, old)
		}
	}
	if err != nil || len(moved) == 0 {
		return err
	}
	return d.moveFlows(moved)
}

// live reports whether the gateway works on connections in state s.
func live(s State) bool { return s >= StateNegotiating && s <= StateRaw }

func wayOf(k *smcgwFlowKey, v *smcgwFlow) way {
	return way{addrFrom(k.Laddr, k.Family), addrFrom(k.Raddr, k.Family), uint32(v.Mark), uint32(v.Ifindex), uint32(v.Out), uint32(v.Bound)}
}

// moveFlows replaces the ways of flows.
func (d *Datapath) moveFlows(moved map[way]way) error {
	var flows []Flow
	var to []way
	err := d.walk(func(k *smcgwFlowKey, v *smcgwFlow) bool {
		if now, ok := moved[wayOf(k, v)]; ok && live(State(v.Word)) {
			flows, to = append(flows, v.flow(*k)), append(to, now)
		}
		return true
	})
	for i, f := range flows {
		e := d.cas(f.Tuple, smcgwCasArgs{Isn: f.ISN, Op: casWay, From: allStates, Ifindex: to[i].in, Out: to[i].leaves})
		if e != nil && !errors.Is(e, ErrNoFlow) && !errors.Is(e, ErrReplaced) {
			err = errors.Join(err, e)
		}
	}
	d.log.Info("connections go by another device", "connections", len(flows))
	return err
}

// wayNow returns the replacement for a way that no longer works. It returns false if the way works, or if there is no
// other.
func (d *Datapath) wayNow(w way) (way, bool) {
	leads := d.isUp(w.leaves) && netdev.Leads(d.nl, w.local, w.remote, w.mark, w.leaves)
	if leads && d.isUp(w.in) {
		return way{}, false
	}
	now := w
	if !leads {
		by, err := netdev.RouteBy(d.nl, w.local, w.remote, w.mark, w.bound)
		if err != nil || !d.isUp(by) {
			return way{}, false
		}
		now.leaves = by
	}
	if w.in == w.leaves || !d.isUp(w.in) {
		now.in = now.leaves
	}
	return now, now != w
}

// isUp reports whether packets can arrive on a device and our programs are attached to it.
func (d *Datapath) isUp(ifindex uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, ok := d.devices[int(ifindex)]
	return ok && dev.up
}
