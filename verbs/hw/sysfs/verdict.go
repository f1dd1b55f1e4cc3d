package sysfs

import (
	"maps"
	"slices"
	"strconv"

	"github.com/smcgw/smcgw/verbs"
)

// unusable returns why the gateway cannot use a port, or "" if the kernel reports no obstacle. Permanent reasons come
// first.
func (a *Adapter) unusable(p *Port) string {
	switch {
	case a.Node == nodeRNIC:
		return "iWARP has no RDMA WRITE with immediate data"
	case a.Driver == "efa":
		return "EFA has no reliable connections (RC)"
	case a.Node != nodeCA:
		return "a node of type " + strconv.Quote(a.Node) + " has no reliable connections (RC)"
	case p.LinkLayer != linkEthernet && p.LinkLayer != linkInfiniBand:
		return "its link layer is " + strconv.Quote(p.LinkLayer)
	case p.State != "ACTIVE":
		return "the port is " + p.State
	case a.RoCE(p) && !p.hasRoCEv2():
		return "no GID of type RoCE v2: its network device has no address, or RoCE v2 is switched off"
	case a.Verbs == nil:
		return "no device node: the module ib_uverbs is not loaded"
	case a.Verbs.Problem != "":
		return a.Verbs.Path + ": " + a.Verbs.Problem
	default:
		return ""
	}
}

// Hints returns what an operator should know about the host, one sentence each: what keeps adapters that look ready
// from working, and what the network does not promise.
func (h *RDMA) Hints() (list []string) {
	if len(h.Adapters) == 0 {
		return nil
	}
	if h.Memlock >= 0 && h.Memlock < enoughMemlock {
		list = append(list, "locked memory is limited to "+strconv.FormatInt(h.Memlock>>10, 10)+
			" KiB (ulimit -l, LimitMEMLOCK): registrations beyond it fail with no_memory")
	}
	for i := range h.Adapters {
		a := &h.Adapters[i]
		for _, name := range slices.Sorted(maps.Keys(a.Limits)) {
			list = append(list, a.Name+": a control group limits "+name+" to "+strconv.FormatUint(a.Limits[name], 10)+" (rdma.max)")
		}
		for j := range a.Ports {
			p := &a.Ports[j]
			if a.InfiniBand(p) && p.Unusable == "" {
				list = append(list, a.PortName(p)+": its link layer is InfiniBand: used where carriers has ib, which no adapter has proved")
			}
			if a.hardware() && a.RoCE(p) && p.Unusable == "" && (p.Priorities == nil || len(p.Priorities.PFC) == 0) {
				list = append(list, a.PortName(p)+": the port pauses no priority (PFC): RoCE works, and loses packets where the network is congested")
			}
		}
	}
	return list
}

// enoughMemlock is less than a gateway with default limits registers.
const enoughMemlock = 1 << 30

// hardware reports whether the adapter is hardware rather than a software driver.
func (a *Adapter) hardware() bool { return a.PCI != "" }

// TakesRoCE reports whether packets to a UDP port at the addresses of the port reach the adapter and not the kernel:
// hardware recognizes RoCE v2 by its standard port.
func (a *Adapter) TakesRoCE(p *Port, udpPort uint16) bool {
	return udpPort == verbs.RoCEUDPPort && a.hardware() && a.RoCE(p) && p.hasRoCEv2()
}

// PortName returns the name of a port as the rdma tool writes it: mlx5_0/1.
func (a *Adapter) PortName(p *Port) string { return a.Name + "/" + strconv.Itoa(p.Number) }
