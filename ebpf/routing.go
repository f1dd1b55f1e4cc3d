package ebpf

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routing is the part of the namespace's policy routing that gateway sockets
// need: what arrives from A, and SYNs marked for the listener, is local; what a
// socket bound to A sends leaves through A. Rule order matters: a socket that
// inherited the mark must still leave through A.
type routing struct {
	nl       *netlink.Handle
	cfg      Config
	families []int
	restore  bool // loAcceptLocal was off before us
}

// newRouting chooses the families this kernel has.
func newRouting(nl *netlink.Handle, cfg Config) *routing {
	r := &routing{nl: nl, cfg: cfg, families: []int{unix.AF_INET}}
	if hasIPv6() {
		r.families = append(r.families, unix.AF_INET6)
	}
	return r
}

// rules returns our three rules of a family.
func (r *routing) rules(family int) []*netlink.Rule {
	mask := r.cfg.MarkMask
	in, out, mark := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
	in.IifName, in.Table = r.cfg.appName(), r.cfg.Table
	out.OifName, out.Table = r.cfg.appName(), r.cfg.Table+1
	mark.Mark, mark.Mask, mark.Table = r.cfg.marks().local, &mask, r.cfg.Table
	all := []*netlink.Rule{in, out, mark}
	for i, rule := range all {
		rule.Priority, rule.Family = r.cfg.RulePref+i, family
	}
	return all
}

// same reports whether a rule found in the kernel is ours.
func same(have netlink.Rule, want *netlink.Rule) bool {
	return have.Priority == want.Priority && have.Table == want.Table && have.IifName == want.IifName &&
		have.OifName == want.OifName && have.Mark == want.Mark && have.Src == nil && have.Dst == nil
}

// hasRule reports whether a rule of ours is among those of the kernel.
func hasRule(have []netlink.Rule, want *netlink.Rule) bool {
	return slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, want) })
}

// setup checks for collisions, then adds rules and routes. app and lo are
// interface indexes.
func (r *routing) setup(app, lo int) error {
	if err := r.teardown(); err != nil {
		return err
	}
	for _, f := range r.families {
		if err := r.check(f); err != nil {
			return err
		}
	}
	for _, f := range r.families {
		if err := r.add(f, app, lo); err != nil {
			return err
		}
	}
	return nil
}

// check returns ErrCollision if a preference or table is used by others.
func (r *routing) check(family int) error {
	have, err := r.nl.RuleList(family)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	for _, h := range have {
		if h.Priority >= r.cfg.RulePref && h.Priority < r.cfg.RulePref+3 {
			return fmt.Errorf("rule preference %d: %w", h.Priority, ErrCollision)
		}
	}
	for _, table := range []int{r.cfg.Table, r.cfg.Table + 1} {
		routes, err := r.routesOf(family, table)
		if err != nil {
			return err
		}
		if len(routes) > 0 {
			return fmt.Errorf("routing table %d: %w", table, ErrCollision)
		}
	}
	return nil
}

// add installs rules and routes of a family; those that are there stay.
func (r *routing) add(family, app, lo int) error {
	local := &netlink.Route{
		Dst: defaultNet(family), LinkIndex: lo, Table: r.cfg.Table,
		Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Family: family,
	}
	out := &netlink.Route{
		Dst: defaultNet(family), LinkIndex: app, Table: r.cfg.Table + 1,
		Scope: netlink.SCOPE_LINK, Family: family,
	}
	if r.restore && family == unix.AF_INET {
		local.Protocol = changedProtocol
	}
	for _, route := range []*netlink.Route{local, out} {
		if err := r.nl.RouteReplace(route); err != nil {
			return fmt.Errorf("route in table %d: %w", route.Table, err)
		}
	}
	for _, rule := range r.rules(family) {
		if err := r.nl.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("rule %d: %w", rule.Priority, err)
		}
	}
	return nil
}

// teardown removes what setup adds, as far as it is there, and nothing else.
func (r *routing) teardown() error {
	var errs []error
	for _, f := range r.families {
		errs = append(errs, r.removeRules(f), r.removeRoutes(f))
	}
	return errors.Join(errs...)
}

// removeRules deletes our rules of a family.
func (r *routing) removeRules(family int) error {
	have, err := r.nl.RuleList(family)
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	for _, want := range r.rules(family) {
		for _, h := range have {
			if !same(h, want) {
				continue
			}
			if err := r.nl.RuleDel(want); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("rule %d: %w", want.Priority, err)
			}
		}
	}
	return nil
}

// removeRoutes deletes our routes of a family: the local default, and the
// default through A, which the kernel removes itself when A goes.
func (r *routing) removeRoutes(family int) error {
	for _, table := range []int{r.cfg.Table, r.cfg.Table + 1} {
		routes, err := r.routesOf(family, table)
		if err != nil {
			return err
		}
		for _, route := range routes {
			if !r.ours(route) {
				continue
			}
			if err := r.nl.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("route in table %d: %w", table, err)
			}
		}
	}
	return nil
}

// ours recognises our routes.
func (r *routing) ours(route netlink.Route) bool {
	if route.Dst != nil {
		if ones, _ := route.Dst.Mask.Size(); ones != 0 {
			return false
		}
	}
	if route.Table == r.cfg.Table {
		return route.Type == unix.RTN_LOCAL
	}
	link, err := r.nl.LinkByIndex(route.LinkIndex)
	return err == nil && link.Attrs().Name == r.cfg.appName()
}

// routesOf lists a table.
func (r *routing) routesOf(family, table int) ([]netlink.Route, error) {
	routes, err := r.nl.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("routes of table %d: %w", table, err)
	}
	return routes, nil
}

// defaultNet is 0.0.0.0/0 or ::/0.
func defaultNet(family int) *net.IPNet {
	if family == unix.AF_INET6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}
