package netdev

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Offering remembers which devices carry offers, because listing the routes of a host is slow if there are many. The
// zero value has not looked yet. It is safe for concurrent use.
type Offering struct {
	mu     sync.Mutex
	names  map[string]bool // nil if not looked up yet
	policy any
	due    bool
	early  bool // a change came too soon after the last look, and Waits has not said so yet
	pace   Pace
}

// routesAge is the age at which routes are listed again although no change was reported.
const routesAge = time.Minute

// Changed says that devices, addresses or routes may have changed.
func (o *Offering) Changed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.due = true
}

// Waits returns how long until Names looks at a change that came too soon after its last look, or 0 if there is none.
// It reports each such change once.
func (o *Offering) Waits() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.early {
		return 0
	}
	o.early = false
	return max(time.Millisecond, o.pace.Early())
}

// Names returns the names of the devices that carry offers: the named ones, or else those of default routes, and those
// with an address that have routes to peers of the policy. One of many devices to containers, which are routed to
// without an address, does not count. Names lists the routes only if something has changed, or if the policy is a
// different one.
func (o *Offering) Names(nl *netlink.Handle, links []netlink.Link, addrs []netlink.Addr, named []string, policy any, carries func(netip.Prefix) bool) (map[string]bool, error) {
	if len(named) > 0 {
		names := map[string]bool{}
		for _, n := range named {
			names[n] = true
		}
		return names, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.names != nil && o.policy == policy && (o.pace.Early() > 0 || !o.due && time.Since(o.pace.at) < routesAge) {
		o.early = o.due
		return o.names, nil
	}
	o.due, o.early, o.policy = false, false, policy
	defer o.pace.Begin()()
	var err error
	o.names, err = offering(nl, links, addrs, carries) // nil after an error, so that the next call looks again
	return o.names, err
}

// offering returns the names of the devices of the routes that lead to peers.
func offering(nl *netlink.Handle, links []netlink.Link, addrs []netlink.Addr, carries func(netip.Prefix) bool) (map[string]bool, error) {
	byIndex := map[int]string{}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 && !strings.HasPrefix(l.Attrs().Name, OwnPrefix) {
			byIndex[l.Attrs().Index] = l.Attrs().Name
		}
	}
	var names map[string]bool
	for _, f := range Families() {
		addressed := withAddress(addrs, f)
		found, err := Whole(func() (map[string]bool, error) {
			found := map[string]bool{}
			err := nl.RouteListFilteredIter(f, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
				to := destination(r, f)
				if to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast() || to.Bits() > 0 && !carries(to) {
					return true
				}
				for _, i := range routeLinks(r) {
					if name, ok := byIndex[i]; ok && (to.Bits() == 0 || addressed[i]) {
						found[name] = true
					}
				}
				return true
			})
			return found, err
		})
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		if names == nil {
			names = found
		}
		maps.Copy(names, found)
	}
	return names, nil
}

// withAddress returns the indexes of the devices that have an address of a family with more than link scope.
func withAddress(addrs []netlink.Addr, family int) map[int]bool {
	found := map[int]bool{}
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() && (a.IP.To4() != nil) == (family == unix.AF_INET) {
			found[a.LinkIndex] = true
		}
	}
	return found
}

// destination returns the destination of a route of a family.
func destination(r netlink.Route, family int) netip.Prefix {
	if r.Dst != nil {
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			ones, bits := r.Dst.Mask.Size()
			if a = a.Unmap(); a.Is4() {
				ones -= bits - 32
			}
			return netip.PrefixFrom(a, ones)
		}
	}
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// Families returns the address families that this kernel supports.
func Families() []int {
	if HasIPv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// routeLinks returns the devices of a route.
func routeLinks(r netlink.Route) (out []int) {
	if r.LinkIndex > 0 {
		out = append(out, r.LinkIndex)
	}
	for _, hop := range r.MultiPath {
		out = append(out, hop.LinkIndex)
	}
	return out
}

// paceShare bounds the time spent on looking at what may change all the time, such as routes, to one part in paceShare.
const paceShare = 50

// Pace spaces looks by how long they take. The zero value permits one immediately.
type Pace struct {
	at   time.Time
	took time.Duration
}

// Early returns how long until the next look is permitted, or 0 if it is.
func (p *Pace) Early() time.Duration { return max(0, paceShare*p.took-time.Since(p.at)) }

// Begin notes the beginning of a look, and end its end.
func (p *Pace) Begin() (end func()) {
	p.at = time.Now()
	return func() { p.took = time.Since(p.at) }
}
