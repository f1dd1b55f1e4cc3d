package doctor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/gateway/report"
)

// sysctls checks TCP settings that keep SYNs from carrying offers.
func sysctls(e *exam) []Line {
	var lines []Line
	if n, found := e.number("proc/sys/net/ipv4/tcp_timestamps"); found && n == 0 {
		lines = append(lines, failure("sysctl -w net.ipv4.tcp_timestamps=1",
			"net.ipv4.tcp_timestamps is 0: no connection of this host's programs is offered (syn_options)"))
	}
	if n, found := e.number("proc/sys/net/ipv4/tcp_ecn"); found && asksForECN(n) {
		lines = append(lines, failure("sysctl -w net.ipv4.tcp_ecn=2, which still accepts ECN from clients",
			"net.ipv4.tcp_ecn is %d: every SYN asks for ECN, and none is offered (syn_options)", n))
	}
	if lines == nil {
		return []Line{ok("TCP has timestamps and asks for no ECN")}
	}
	return lines
}

// asksForECN reports the values of tcp_ecn with which clients request ECN or AccECN.
func asksForECN(n int64) bool { return n == 1 || n == 3 || n == 4 }

// devices checks the network devices.
func devices(e *exam) []Line {
	list, err := e.host.Devices(e.uses(report.DeviceIB))
	if err != nil {
		return []Line{warning("run this as root", "network devices could not be listed: %v", err)}
	}
	byName := map[string]Device{}
	for _, d := range list {
		byName[d.Name] = d
		if len(e.Config.Devices) == 0 && d.Default {
			e.devices = append(e.devices, d.Name)
		}
	}
	if len(e.Config.Devices) > 0 {
		e.devices = e.Config.Devices
	} else if e.devices == nil {
		return []Line{warning("name them in devices", "no default route: only devices with an address and a route to peers of rules are looked at")}
	}
	var lines []Line
	for _, name := range e.devices {
		if d, found := byName[name]; found {
			lines = append(lines, e.device(d))
		} else {
			lines = append(lines, failure("correct devices; see ip link", "there is no network device %s in this network namespace", name))
		}
	}
	return lines
}

// leastMTU is the minimum MTU of IPv6 (RFC 8200, section 5).
const leastMTU = 1280

// device returns the line of a device.
func (e *exam) device(d Device) Line {
	about := fmt.Sprintf("%s: MTU %d", d.Name, d.MTU)
	if n := softPacket(d.MTU); n > 0 && e.uses(report.DeviceSoft) {
		about += fmt.Sprintf(", soft moves %d bytes in a packet", n)
		if n < 4096 {
			about += ", 4096 from an MTU of 4176"
		}
	}
	var slow []string
	for _, o := range []string{"gro", "gso"} {
		if slices.Contains(d.Off, o) {
			slow = append(slow, o)
		}
	}
	why, remedy, _ := strings.Cut(d.Unoffering, ": ")
	switch {
	case why != "":
		return warning(remedy, "%s %s: nothing is carried by it (address)", d.Name, why)
	case !d.Up:
		return warning("ip link set "+d.Name+" up", "%s: the device is down", d.Name)
	case d.MTU < leastMTU:
		return warning("raise it, to 1280 at least", "%s: the MTU %d is less than IPv6 needs", d.Name, d.MTU)
	case slow != nil && d.Hardware: // packets from this host are large anyway
		return warning("ethtool -K "+d.Name+" "+strings.Join(slow, " on ")+" on", "%s, %s off: every packet is handled by itself", about, strings.Join(slow, " and "))
	case len(d.Off) > 0:
		return ok("%s; offloads that are off: %s", about, strings.Join(d.Off, " "))
	default:
		return ok("%s, offloads are on", about)
	}
}

// softPacket returns the payload of a full packet of soft on a device with the given MTU.
func softPacket(mtu int) int {
	const headers = 80
	for n := 4096; n >= 256; n /= 2 {
		if n+headers <= mtu {
			return n
		}
	}
	return 0
}

// ports checks the UDP ports that the gateway takes.
func ports(e *exam) []Line {
	if e.Daemon != nil {
		return []Line{ok("the daemon has its UDP ports, or \"daemon\" below says which not")}
	}
	taken := map[uint16]bool{}
	for _, name := range []string{"proc/net/udp", "proc/net/udp6"} {
		text, _ := e.text(name)
		for line := range strings.Lines(text) {
			if port, found := localPort(line); found {
				taken[port] = true
			}
		}
	}
	var lines []Line
	ask := func(used bool, port uint16, what string) {
		if used && port != 0 && taken[port] {
			lines = append(lines, warning(fmt.Sprintf("see ss -ulpn 'sport = :%d'", port), "UDP port %d is taken already: %s", port, what))
		}
	}
	soft := e.uses(report.DeviceSoft)
	ask(soft, e.Config.Soft.UDPPort, fmt.Sprintf("soft receives on port %d instead", e.Config.Soft.AlternatePort()))
	ask(true, e.Config.DatagramPort.Port(), "no UDP datagrams are carried (datagram_port)")
	if lines == nil {
		return []Line{ok("the UDP ports of the gateway are free")}
	}
	return lines
}

// localPort parses a line of /proc/net/udp: its second field is the local address and port in hexadecimal.
func localPort(line string) (uint16, bool) {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return 0, false
	}
	_, hex, found := strings.Cut(fields[1], ":")
	n, err := strconv.ParseUint(hex, 16, 16)
	return uint16(n), found && err == nil
}

// scarce is how many free places of a hook count as few.
const scarce = 4

// hooks checks the room where the programs are attached. A takeover needs places besides those of the running gateway.
func hooks(e *exam) []Line {
	const remedy = "bpftool cgroup tree; bpftool net: end agents or gateways that are not needed"
	var lines []Line
	var filled, unseen []string
	for _, h := range e.host.Hooks(e.cgroup, e.devices) {
		n := len(h.Programs)
		switch {
		case h.Err != nil && e.Daemon == nil:
			unseen = append(unseen, h.Name)
		case h.Err != nil:
		case n >= inspect.HookRoom && e.Daemon == nil:
			lines = append(lines, failure(remedy, "%s: %d programs are attached, as many as the kernel takes: the gateway will not start", h.Name, n))
		case n >= inspect.HookRoom-scarce:
			lines = append(lines, warning(remedy, "%s: %d of %d places are taken; every gateway needs one, a takeover one more", h.Name, n, inspect.HookRoom))
		default:
			filled = append(filled, fmt.Sprintf("%s %d", h.Name, n))
		}
	}
	if unseen != nil { // the kernel's errors name a version of Linux, not the privilege
		lines = append(lines, warning("run this as root (CAP_NET_ADMIN)", "the programs attached to %s could not be listed", strings.Join(unseen, ", ")))
	}
	if len(filled) > 0 {
		lines = append(lines, ok("programs that are attached, of %d at most: %s", inspect.HookRoom, strings.Join(filled, ", ")))
	}
	if lines == nil {
		return []Line{ok("the daemon's programs are attached")}
	}
	return lines
}

// Numbers of linux/netfilter/nf_tables.h.
const (
	subsystem = 10 // NFNL_SUBSYS_NFTABLES
	getChain  = 4  // NFT_MSG_GETCHAIN
	attrTable = 1  // NFTA_CHAIN_TABLE
	attrName  = 3  // NFTA_CHAIN_NAME
)

func (this) Chains() ([]Chain, error) {
	req := nl.NewNetlinkRequest(subsystem<<8|getChain, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	var list []Chain
	for _, m := range messages {
		c, err := parseChain(m)
		if err != nil {
			return list, err
		}
		list = append(list, c)
	}
	return list, nil
}

// errChain is a truncated nftables message.
var errChain = errors.New("nftables: a message that is cut short")

// parseChain parses struct nfgenmsg and the attributes after it (netlink(7)).
func parseChain(m []byte) (c Chain, err error) {
	const generic, head = 4, 4
	if len(m) < generic {
		return c, errChain
	}
	for m = m[generic:]; len(m) > 0; {
		if len(m) < head {
			return c, errChain
		}
		n, kind := int(binary.NativeEndian.Uint16(m)), binary.NativeEndian.Uint16(m[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if n < head || n > len(m) {
			return c, errChain
		}
		value, _, _ := bytes.Cut(m[head:n], []byte{0})
		switch kind {
		case attrTable:
			c.Table = string(value)
		case attrName:
			c.Name = string(value)
		}
		m = m[min(len(m), (n+3)&^3):]
	}
	if c.Table == "" || c.Name == "" {
		return c, errChain
	}
	return c, nil
}
