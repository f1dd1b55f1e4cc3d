package legs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// table contains the route that makes every destination local.
	table = 100
	// rulePref places the rule after the one for the namespace's own addresses.
	rulePref = 100
)

// settings returns the sysctls of the namespace. Sockets have addresses of other hosts and any port, and a leg that has
// ended must leave nothing that could obstruct the next connection on its tuple.
func settings(device string) [][2]string {
	return [][2]string{
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/conf/" + device + "/rp_filter", "0"},
		{"ipv4/conf/" + device + "/accept_local", "1"},
		{"ipv4/ip_unprivileged_port_start", "0"},
		{"ipv4/tcp_max_tw_buckets", "0"},
		{"ipv4/tcp_mtu_probing", "0"},
		{"ipv6/conf/" + device + "/addr_gen_mode", "1"},
		{"ipv6/conf/lo/disable_ipv6", "0"}, // the host may have disabled it in new namespaces (ipv6.disable_ipv6=1)
		{"ipv6/conf/" + device + "/disable_ipv6", "0"},
		{"ipv6/conf/" + device + "/accept_ra", "0"},
	}
}

// setupDevice handles a deviceRequest.
func setupDevice(r deviceRequest) (int, error) {
	router, err := net.ParseMAC(r.Router)
	if err != nil {
		return 0, fmt.Errorf("router: %w", err)
	}
	if r.Name != filepath.Base(r.Name) || strings.HasPrefix(r.Name, ".") {
		return 0, fmt.Errorf("device %q: not a name", r.Name)
	}
	for _, s := range settings(r.Name) {
		if err := set(s[0], s[1]); err != nil {
			return 0, err
		}
	}
	for key, value := range r.Settings {
		if err := set(key, value); err != nil {
			return 0, err
		}
	}
	return setupLink(r, router)
}

// setupLink brings the device up and routes everything through it.
func setupLink(r deviceRequest, router net.HardwareAddr) (int, error) {
	l, err := netlink.LinkByName(r.Name)
	if err != nil {
		return 0, fmt.Errorf("device %s: %w", r.Name, err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("loopback: %w", err)
	}
	for _, do := range []func() error{
		func() error { return netlink.LinkSetMTU(l, r.MTU) },
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.LinkSetUp(l) },
	} {
		if err := do(); err != nil {
			return 0, fmt.Errorf("device %s: %w", r.Name, err)
		}
	}
	for _, f := range families() {
		if err := route(f, l, lo, router); err != nil {
			return 0, err
		}
	}
	return l.Attrs().Index, nil
}

// family has what differs between IPv4 and IPv6.
type family struct {
	number   int
	anywhere *net.IPNet
	gateway  net.IP // a neighbour that exists only in this namespace
}

// families returns the families that the kernel supports.
func families() []family {
	out := []family{{unix.AF_INET, &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, net.IPv4(169, 254, 1, 1).To4()}}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		out = append(out, family{unix.AF_INET6, &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, net.ParseIP("fe80::1")})
	}
	return out
}

// route makes everything that arrives local, and sends everything that leaves to the router.
func route(f family, l, lo netlink.Link, router net.HardwareAddr) error {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.IifName = f.number, rulePref, table, l.Attrs().Name
	index := l.Attrs().Index
	local := &netlink.Route{
		Dst: f.anywhere, LinkIndex: lo.Attrs().Index, Table: table, Type: unix.RTN_LOCAL,
		Scope: netlink.SCOPE_HOST, Family: f.number,
	}
	near := &netlink.Neigh{LinkIndex: index, Family: f.number, State: netlink.NUD_PERMANENT, IP: f.gateway, HardwareAddr: router}
	out := &netlink.Route{Dst: f.anywhere, LinkIndex: index, Gw: f.gateway, Flags: int(netlink.FLAG_ONLINK), Family: f.number}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"rule", func() error { return netlink.RuleAdd(rule) }},
		{"local route", func() error { return netlink.RouteReplace(local) }},
		{"neighbour", func() error { return netlink.NeighSet(near) }},
		{"route", func() error { return netlink.RouteReplace(out) }},
	} {
		if err := step.do(); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s of %s: %w", step.name, l.Attrs().Name, err)
		}
	}
	return nil
}

// set writes a sysctl below net, unless the kernel does not have it.
func set(key, value string) error {
	path := filepath.Join("/proc/sys/net", filepath.Clean("/"+key))
	err := os.WriteFile(path, []byte(value), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sysctl %s: %w", key, err)
	}
	return nil
}
