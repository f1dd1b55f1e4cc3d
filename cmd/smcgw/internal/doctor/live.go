package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// This returns the Probes of this process's host.
func This() Probes { return this{} }

type this struct{}

// Files implements Probes.
func (this) Files() fs.FS { return os.DirFS("/") }

// Features implements Probes.
func (this) Features() ([]inspect.Feature, error) {
	spec, err := ebpf.Spec()
	if err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	return inspect.Features(spec), nil
}

// Hooks implements Probes.
func (this) Hooks(cgroup string, devices []string) []inspect.Hook {
	return inspect.Hooks(cgroup, devices)
}

// RDMA implements Probes.
func (this) RDMA() (sysfs.RDMA, error) { return sysfs.Read() }

// Devices implements Probes.
func (this) Devices(infiniBand bool) ([]Device, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	routed := map[int]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			continue // a kernel without IPv6
		}
		for i := range routes {
			if ones, ok := bits(routes[i].Dst); ok && ones > 0 {
				continue
			}
			routed[routes[i].LinkIndex] = true
			for _, hop := range routes[i].MultiPath {
				routed[hop.LinkIndex] = true
			}
		}
	}
	reasons := inspect.Unoffering(all, infiniBand)
	list := make([]Device, 0, len(all))
	for _, l := range all {
		a := l.Attrs()
		list = append(list, Device{
			Name: a.Name, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Hardware: l.Type() == "device",
			Default: routed[a.Index] && a.Flags&net.FlagLoopback == 0, Off: offloadsOff(a.Name), Unoffering: reasons[a.Name],
		})
	}
	return list, nil
}

// bits returns the length of a prefix; a default route has none.
func bits(n *net.IPNet) (int, bool) {
	if n == nil {
		return 0, false
	}
	ones, _ := n.Mask.Size()
	return ones, true
}

// refusalPatience is how long an ICMP error may take.
const refusalPatience = time.Second

// Refuses implements Probes. The datagram is empty, so a gateway does not take it for a packet.
func (this) Refuses(ctx context.Context, to netip.AddrPort) (bool, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to.String())
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(refusalPatience)); err != nil {
		return false, err
	}
	if _, err := c.Write(nil); err != nil {
		return refusal(err)
	}
	_, err = c.Read(make([]byte, 1))
	return refusal(err)
}

// refusal distinguishes an ICMP error from silence.
func refusal(err error) (bool, error) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return true, nil
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return false, nil
	default:
		return false, err
	}
}
