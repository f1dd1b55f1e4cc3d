package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// rdma lists adapters.
func rdma(e *exam) []Line {
	h, err := e.host.RDMA()
	if err != nil {
		return []Line{warning("see /sys/class/infiniband", "RDMA adapters could not be listed: %v", err)}
	}
	if len(h.Adapters) == 0 {
		return []Line{ok("no RDMA adapter: connections are carried by shm on this host, and by soft")}
	}
	var lines []Line
	for i := range h.Adapters {
		a := &h.Adapters[i]
		for j := range a.Ports {
			p, kind := &a.Ports[j], report.DeviceHW
			if a.InfiniBand(p) {
				kind = report.DeviceIB
			}
			switch {
			case p.Unusable == "":
				lines = append(lines, ok("%s: %s, %s", a.PortName(p), p.State, p.Rate))
			case e.uses(kind):
				lines = append(lines, warning("docs/ADAPTERS.md; or leave "+string(kind)+" out of carriers", "%s cannot be used: %s", a.PortName(p), p.Unusable))
			default:
				lines = append(lines, ok("%s cannot be used, nor is it to be (carriers): %s", a.PortName(p), p.Unusable))
			}
		}
	}
	if e.Config.UsesAdapters() {
		h.Memlock = -1 // it has its own check, about the process that counts
		for _, hint := range h.Hints() {
			lines = append(lines, warning("docs/ADAPTERS.md", "%s", hint))
		}
	}
	return lines
}

// configuration reports what the configuration file contains.
func configuration(e *exam) []Line {
	if e.ConfigFile == "" {
		return []Line{ok("no configuration file was named, and there is none at the usual place: mode is observe, no rule")}
	}
	var lines []Line
	if e.ConfigError != nil {
		for line := range strings.Lines(e.ConfigError.Error()) {
			lines = append(lines, failure("smcgw check -c "+e.ConfigFile, "%s: %s", e.ConfigFile, strings.TrimSpace(line)))
		}
		return lines
	}
	for _, n := range e.ConfigNotes {
		lines = append(lines, warning("see smcgw check -c "+e.ConfigFile, "%s", n))
	}
	return append(lines, ok("%s: mode %s, %s", e.ConfigFile, e.Config.Mode, counted(len(e.Config.Policy), "rule")))
}

// daemon reports what the running gateway says about itself.
func daemon(e *exam) []Line {
	d := e.Daemon
	switch {
	case d == nil && len(e.Others) > 0:
		return []Line{warning("name its -c or --socket", "no daemon answers, but there is another: %s", strings.Join(e.Others, ", "))}
	case d == nil && e.ConfigError != nil:
		return []Line{warning("correct the configuration, then systemctl start smcgw", "no daemon answers: every connection is native")}
	case d == nil:
		return []Line{warning("systemctl start smcgw, or smcgw up -c FILE; name its --socket if it has another", "no daemon answers: every connection is native")}
	case d.Problem != "":
		return []Line{warning("run this as root, or as a member of the group smcgw", "a daemon is there and cannot be asked: %s", d.Problem)}
	}
	lines := []Line{ok("version %s, mode %s", d.Status.Version, d.Status.Mode)}
	if d.Status.Version != e.Version {
		lines = append(lines, warning("smcgw reload: the installed program takes over, and carried connections go on", "the daemon has version %s, this program %s", d.Status.Version, e.Version))
	}
	switch {
	case d.Status.Mode != report.ModeOff:
	case e.Config.Mode == report.ModeOff:
		lines = append(lines, warning("set mode to observe or enforce in "+e.ConfigFile+", and smcgw reload", "the configuration switches the gateway off: new connections are native"))
	default:
		lines = append(lines, warning("smcgw on", "the gateway is switched off: new connections are native"))
	}
	for _, name := range d.Status.Degraded {
		meaning, remedy := explained(name)
		lines = append(lines, failure(remedy, "degraded: %s: %s", name, meaning))
	}
	for _, n := range d.Status.Notes {
		lines = append(lines, warning("see smcgw status", "%s", n))
	}
	if l := d.Status.FlowLimit; l.Now < l.Configured {
		lines = append(lines, warning("LimitNOFILE=1048576 in the unit", "%d connections can be carried instead of %d: a descriptor each", l.Now, l.Configured))
	}
	for _, i := range d.Devices {
		switch i.State {
		case report.DeviceActive:
			lines = append(lines, ok("device %s is active", i.Name))
		case report.DeviceAbsent:
			lines = append(lines, ok("device %s is absent: %s", i.Name, i.Error))
		default:
			lines = append(lines, warning("smcgw devices; smcgw codes device_failed", "device %s is %s: %s", i.Name, i.State, i.Error))
		}
	}
	return lines
}

// explained returns what a reason means and what to do.
func explained(name string) (meaning, remedy string) {
	c, found := report.CodeNamed(name)
	if !found {
		return "see smcgw status", "smcgw status"
	}
	return strings.TrimSuffix(c.Meaning, "."), strings.TrimSuffix(c.Fix, ".")
}

// peer checks another host.
func peer(e *exam) []Line {
	p := e.Peer
	if p == nil {
		return nil
	}
	lines := e.reachedBySoft()
	if e.Daemon != nil {
		lines = append(lines, e.remembered()...)
	}
	where := fmt.Sprintf("%v, port %d", p.Address, p.Port)
	switch meaning, remedy := explained(p.Reason); {
	case p.Problem != "":
		lines = append(lines, failure("see smcgw ping", "%s: %s", where, p.Problem))
	case p.Reason != "":
		lines = append(lines, failure(remedy, "%s: a connection was native, %s: %s", where, p.Reason, meaning))
	case p.Carrier != report.CarrierNone:
		lines = append(lines, ok("%s: a connection was carried by %s", where, p.Carrier))
	case p.Port != 0:
		lines = append(lines, warning("start the daemon", "%s: no connection was tried, no daemon answers", where))
	}
	return lines
}

// reachedBySoft checks whether the peer receives on soft's port, assumed to be that of this host, since the peer's is
// not known here. If a device carried a connection, there is nothing to check.
func (e *exam) reachedBySoft() []Line {
	device := e.Peer.Carrier != report.CarrierNone && e.Peer.Carrier != report.CarrierRelay
	if device || !e.uses(report.DeviceSoft) {
		return nil
	}
	to := netip.AddrPortFrom(e.Peer.Address, e.Config.Soft.UDPPort)
	switch refused, err := e.host.Refuses(e.ctx, to); {
	case err != nil:
		return []Line{failure("see ip route get "+to.Addr().String(), "no datagram can be sent to %v: %v", to, err)}
	case refused:
		return []Line{warning("unless its soft.udp_port is another: run smcgw there, with soft in carriers, and let the port pass its firewall",
			"%v answers that nothing receives on UDP port %d", to.Addr(), to.Port())}
	}
	return []Line{ok("UDP %v is not refused; only a connection shows whether a firewall drops it (--peer HOST:PORT)", to)}
}

// remembered reports what the gateway knows of the peer.
func (e *exam) remembered() (lines []Line) {
	for _, p := range e.Daemon.Peers {
		if p.Address != e.Peer.Address || p.Port != 0 && p.Port != e.Peer.Port {
			continue
		}
		meaning, remedy := explained(p.Reason)
		switch {
		case p.State == report.PeerIncapable || p.State == report.PeerBlackholed:
			lines = append(lines, warning(remedy+"; smcgw peers flush tries at once", "%v is remembered as %s, %s: %s", p.Address, p.State, p.Reason, meaning))
		case slices.Contains(p.CarriersFailed, report.CarrierSoft):
			lines = append(lines, warning("let the UDP port of soft (smcgw devices) pass between the hosts, with packets of full size", "%v is remembered as not reached by rdma-soft", p.Address))
		case len(p.Carriers) > 0:
			lines = append(lines, ok("%v has been reached by %s", p.Address, report.JoinCarriers(p.Carriers)))
		}
	}
	return lines
}

// This returns the Probes of this process's host.
func This() Probes { return this{} }

type this struct{}

var _ Probes = this{}

func (this) Files() fs.FS { return os.DirFS("/") }

func (this) Features() ([]inspect.Feature, error) {
	spec, err := ebpf.Spec()
	if err != nil {
		return nil, fmt.Errorf("object: %w", err)
	}
	return inspect.Features(spec), nil
}

func (this) Hooks(cgroup string, devices []string) []inspect.Hook {
	return inspect.Hooks(cgroup, devices)
}

func (this) RDMA() (sysfs.RDMA, error) { return sysfs.Read() }

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
