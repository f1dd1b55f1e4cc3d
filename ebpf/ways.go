package ebpf

import (
	"errors"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// ways is what followWays remembers.
type ways struct {
	due  bool // something has changed since the last look
	pace netdev.Pace
}

// way is the addresses of a flow, the devices by which its packets come and go, and the
// one that the application's socket is bound to: 0, a device, or the master of a VRF.
type way struct {
	local, remote           netip.Addr
	mark, in, leaves, bound uint32
}

// followWays has flows go by another device when theirs has gone, is down, or leads to
// the peer no more. The programs see for themselves where an application sends
// (follow_way in egress.h); one that waits for its peer sends nothing. A device that
// still leads there is kept, also if the host would choose another one now. One that a
// socket is bound to is waited for, as the socket does.
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

// live tells that the gateway works on a connection in a state.
func live(s State) bool { return s >= StateNegotiating && s <= StateRaw }

func wayOf(k *smcgwFlowKey, v *smcgwFlow) way {
	return way{addrFrom(k.Laddr, k.Family), addrFrom(k.Raddr, k.Family), uint32(v.Mark), uint32(v.Ifindex), uint32(v.Out), uint32(v.Bound)}
}

// moveFlows gives the flows of some ways other ones.
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

// wayNow returns the way in the place of one that is of no use any more, if there is one.
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

// isUp tells whether packets can come by a device, and our programs are there.
func (d *Datapath) isUp(ifindex uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, ok := d.devices[int(ifindex)]
	return ok && dev.up
}
