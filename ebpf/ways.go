package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ways is what followWays remembers.
type ways struct {
	due  bool // something has changed since the last look
	at   time.Time
	took time.Duration
}

// waysShare bounds the time that looking at routes takes, on hosts whose routes change
// all the time: one part in so many.
const waysShare = 50

// way is the addresses of a flow and the devices by which its packets come and go.
type way struct {
	local, remote    netip.Addr
	mark, in, leaves uint32
}

// followWays has flows go by another device when theirs has gone, is down, or leads to
// the peer no more. The programs see for themselves where an application sends
// (follow_way in egress.h); one that waits for its peer sends nothing. A device that
// still leads there is kept, also if the host would choose another one now: a socket
// may be bound to it.
func (d *Datapath) followWays(changed bool) error {
	w := &d.ways
	w.due = w.due || changed
	if !w.due || time.Since(w.at) < waysShare*w.took {
		return nil
	}
	w.due, w.at = false, time.Now()
	defer func() { w.took = time.Since(w.at) }()
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
	return way{addrFrom(k.Laddr, k.Family), addrFrom(k.Raddr, k.Family), v.Mark, v.Ifindex, v.Out}
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
	leads := d.isUp(w.leaves) && d.leadsTo(w)
	if leads && d.isUp(w.in) {
		return way{}, false
	}
	now := w
	if !leads {
		route, err := d.routeOf(w, netlink.RouteGetOptions{})
		if err != nil || !d.isUp(uint32(route.LinkIndex)) {
			return way{}, false
		}
		now.leaves = uint32(route.LinkIndex)
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

// leadsTo tells whether there is a route by the device by which a way leaves. The
// kernel would make one up for a socket that insists on it.
func (d *Datapath) leadsTo(w way) bool {
	r, err := d.routeOf(w, netlink.RouteGetOptions{OifIndex: int(w.leaves), FIBMatch: true})
	if err != nil {
		return !noRoute(err)
	}
	return leavesBy(r, int(w.leaves))
}

// noRoute tells that the kernel knows no way, rather than that it could not be asked.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.ENODEV, unix.ENETDOWN},
		func(e error) bool { return errors.Is(err, e) })
}

// routeOf asks the kernel for a route from one end of a way to the other.
func (d *Datapath) routeOf(w way, o netlink.RouteGetOptions) (netlink.Route, error) {
	o.SrcAddr, o.Mark = w.local.AsSlice(), w.mark
	routes, err := d.nl.RouteGetWithOptions(w.remote.AsSlice(), &o)
	if err != nil {
		return netlink.Route{}, fmt.Errorf("route from %v to %v: %w", w.local, w.remote, err)
	}
	if len(routes) == 0 {
		return netlink.Route{}, fmt.Errorf("route from %v to %v: %w", w.local, w.remote, unix.ENETUNREACH)
	}
	return routes[0], nil
}

// leavesBy tells whether a route is by a device, or one of its hops is.
func leavesBy(r netlink.Route, ifindex int) bool {
	return r.LinkIndex == ifindex || slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == ifindex })
}
