package sysfs

import (
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/smcgw/smcgw/verbs"
)

// RoCEPorts maps addresses of this host to the ports that speak RoCE v2 for them.
type RoCEPorts map[netip.Addr]RoCEPort

// RoCEPort is a port that speaks RoCE v2.
type RoCEPort struct {
	Name string // mlx5_0/1
	// Hardware means that the adapter takes packets to UDP port 4791 before the kernel sees them: a socket bound to the
	// port receives nothing. A software driver has sockets on the port instead, so that no other can be bound.
	Hardware bool
}

// RoCE returns the addresses of this host for which an adapter speaks RoCE v2.
func RoCE() (RoCEPorts, error) {
	sys := os.DirFS("/sys")
	list, err := adapters(sys)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	local, err := interfaces()
	if err != nil {
		return nil, err
	}
	return rocePorts(sys, list, local), nil
}

// hardwareAddrLen is the length of the hardware address of an IPoIB device: a byte of flags, the number of its queue
// pair, and the GID of its port (RFC 4391, 9.1.1).
const hardwareAddrLen = 20

// IPoIB returns the GID of the port below an IPoIB device, or zero for another device.
func IPoIB(ifindex int) (gid [16]byte, err error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return gid, fmt.Errorf("network device %d: %w", ifindex, err)
	}
	if len(l.Attrs().HardwareAddr) == hardwareAddrLen {
		copy(gid[:], l.Attrs().HardwareAddr[4:])
	}
	return gid, nil
}

// rocePorts maps addresses to ports. The GID table alone is not enough: it may be too short for the addresses of its
// network device, and lacks those of a bridge above the device and of services on the loopback device, whose packets
// the hardware takes as well. A network device belongs to a port if it has an address of the port: its name alone may
// be that of a device in another network namespace.
func rocePorts(sys fs.FS, list []Adapter, local map[string][]netip.Addr) RoCEPorts {
	m := RoCEPorts{}
	for i := range list {
		a := &list[i]
		for j := range a.Ports {
			if p := &a.Ports[j]; a.RoCE(p) {
				m.addPort(sys, a, p, local)
			}
		}
	}
	return m
}

func (m RoCEPorts) addPort(sys fs.FS, a *Adapter, p *Port, local map[string][]netip.Addr) {
	at := RoCEPort{Name: a.PortName(p), Hardware: a.hardware()}
	speaks := false
	for i := range p.GIDs {
		g := &p.GIDs[i]
		if g.Type != RoCEv2 {
			continue
		}
		speaks = true
		m.add(at, g.Addr())
		if slices.Contains(local[g.Device], g.Addr()) {
			for _, device := range above(sys, g.Device) {
				m.add(at, local[device]...)
			}
		}
	}
	if speaks && at.Hardware {
		m.add(at, slices.DeleteFunc(slices.Clone(local["lo"]), netip.Addr.IsLoopback)...)
	}
}

// add records that a port speaks for addresses; hardware takes precedence over software.
func (m RoCEPorts) add(at RoCEPort, addrs ...netip.Addr) {
	for _, a := range addrs {
		if have, ok := m[a]; !ok || at.Hardware && !have.Hardware {
			m[a] = at
		}
	}
}

// maxAbove bounds the network devices stacked on one.
const maxAbove = 1024

// above lists a network device and those stacked on it: bridges, bonds, VLANs.
func above(sys fs.FS, device string) []string {
	list := []string{device}
	for i := 0; i < len(list) && len(list) < maxAbove; i++ {
		entries, err := fs.ReadDir(sys, path.Join("class/net", list[i]))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if name, ok := strings.CutPrefix(e.Name(), "upper_"); ok && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	return list
}

// interfaces lists the addresses of the network devices of this namespace.
func interfaces() (map[string][]netip.Addr, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network devices: %w", err)
	}
	m := map[string][]netip.Addr{}
	for i := range all {
		addrs, err := all[i].Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(n.IP); ok {
					m[all[i].Name] = append(m[all[i].Name], addr.Unmap())
				}
			}
		}
	}
	return m, nil
}

// Taker returns the name of the adapter that takes packets to a UDP port of an address, if one does: hardware
// recognizes RoCEv2 by its standard port.
func (m RoCEPorts) Taker(a netip.Addr, port uint16) string {
	if at := m[a]; at.Hardware && port == verbs.RoCEUDPPort {
		return at.Name
	}
	return ""
}

// HeldBy describes why a UDP port cannot be bound, as far as that is known.
func (m RoCEPorts) HeldBy(port uint16) string {
	why := "UDP port " + strconv.Itoa(int(port)) + " is in use"
	var names []string
	for _, at := range m {
		if !at.Hardware && port == verbs.RoCEUDPPort && !slices.Contains(names, at.Name) {
			names = append(names, at.Name)
		}
	}
	if len(names) > 0 {
		why += " by " + slices.Min(names) + ", an RDMA device in software"
	}
	return why
}
