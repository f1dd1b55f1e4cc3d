package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/gateway/report"
)

// PortRange is an inclusive range of ports. In a file it is a number or a range such as
// 6000-7000.
type PortRange uint32

// newPortRange returns the range of ports from first to last.
func newPortRange(first, last uint16) PortRange { return PortRange(first)<<16 | PortRange(last) }

// Ports returns the ranges of single ports.
func Ports(list ...uint16) []PortRange {
	out := make([]PortRange, len(list))
	for i, p := range list {
		out[i] = newPortRange(p, p)
	}
	return out
}

// First returns the first port of the range.
func (r PortRange) First() uint16 { return uint16(r >> 16) }

// Last returns the last port of the range.
func (r PortRange) Last() uint16 { return uint16(r) }

// Single reports whether the range is a single port. Only a rule that names a port this way
// carries it if it is on the never-list.
func (r PortRange) Single() bool { return r.First() == r.Last() }

// Has reports whether a port is in the range.
func (r PortRange) Has(p uint16) bool { return r.First() <= p && p <= r.Last() }

// String renders the range as in the file.
func (r PortRange) String() string {
	if r.Single() {
		return strconv.Itoa(int(r.First()))
	}
	return fmt.Sprintf("%d-%d", r.First(), r.Last())
}

// MarshalText renders the range as String does.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func (r *PortRange) setText(text string) error {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	from, to = strings.TrimSpace(from), strings.TrimSpace(to)
	first, err := strconv.ParseUint(from, 10, 16)
	last, errLast := strconv.ParseUint(to, 10, 16)
	if err != nil || errLast != nil || last < first || !isDecimal(from) || !isDecimal(to) { // 010 would be 8 in YAML
		return fmt.Errorf("%q is neither a port from 1 to 65535 nor a range such as 6000-7000; names of services are not known here", text)
	}
	*r = newPortRange(uint16(first), uint16(last))
	return nil
}

// OptionalPort is a UDP port that can be disabled. Its zero value means "the default", so
// "none" has a value of its own.
type OptionalPort int32

// NoPort is written as 0 in the file.
const NoPort OptionalPort = -1

// Port returns the port, or 0 if it is disabled.
func (p OptionalPort) Port() uint16 { return uint16(max(p, 0)) }

// MarshalText renders the number as in the file.
func (p OptionalPort) MarshalText() ([]byte, error) {
	return strconv.AppendUint(nil, uint64(p.Port()), 10), nil
}

func (p *OptionalPort) setText(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not a number from 0 to 65535", text)
	}
	*p = OptionalPort(n)
	if n == 0 {
		*p = NoPort
	}
	return nil
}

// datagrams checks the port against other users of UDP: the soft device sends from ports of
// the dynamic range. The messages between gateways must never be taken for datagrams of a
// program, whatever the policy.
func (k *checker) datagrams(c Config) {
	if c.DatagramPort != NoPort {
		between(k, "datagram_port", int(c.DatagramPort), 1, 0xbfff)
		k.must(c.DatagramPort.Port() != c.Soft.UDPPort, "datagram_port", "%d is the port of the soft device", c.DatagramPort)
		k.must(c.DatagramPort.Port() != c.Soft.AlternatePort(), "datagram_port", "%d is the alternate port of the soft device", c.DatagramPort)
	}
	for i, r := range c.Policy {
		for j, p := range r.Match.Ports {
			own := r.carriesDatagrams() && slices.ContainsFunc(c.OwnPorts(), p.Has)
			k.must(!own, fmt.Sprintf("policy[%d].match.ports[%d]", i, j), "%v is a port of the gateway itself and cannot be carried", p)
		}
	}
}

// OwnPorts returns the UDP ports of this gateway.
func (c Config) OwnPorts() []uint16 {
	list := []uint16{c.DatagramPort.Port(), c.Soft.UDPPort, c.Soft.AlternatePort()}
	return slices.DeleteFunc(list, func(p uint16) bool { return p == 0 })
}

// carriesDatagrams reports whether the rule selects datagrams to be carried.
func (r Rule) carriesDatagrams() bool {
	return r.Match.Proto == report.ProtoUDP && r.Action != report.ActionPass
}

// NamesDatagramPeer reports whether a rule that carries datagrams lists the address among its
// peers. Only such a peer may be queried without evidence that it is a gateway: nothing is
// sent to hosts that the operator did not name.
func (c Config) NamesDatagramPeer(a netip.Addr) bool {
	return slices.ContainsFunc(c.Policy, func(r Rule) bool {
		return r.carriesDatagrams() && slices.ContainsFunc(r.Match.Peers, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
	})
}

// WantsDatagrams reports whether any rule carries datagrams.
func (c Config) WantsDatagrams() bool {
	return c.DatagramPort.Port() != 0 && slices.ContainsFunc(c.Policy, Rule.carriesDatagrams)
}

// maxServicesOf bounds the result of ServicesOf.
const maxServicesOf = 16

// ServicesOf lists the first TCP services of a host that rules carry by port, ignoring port
// ranges: what a test of the host can connect to.
func (c Config) ServicesOf(a netip.Addr) (list []netip.AddrPort) {
	a = a.Unmap()
	var decided []PortRange // by an earlier rule
	for _, r := range c.Policy {
		about := len(r.Match.Peers) == 0 || slices.ContainsFunc(r.Match.Peers, func(p netip.Prefix) bool { return p.Contains(a) })
		if r.Match.Proto == report.ProtoUDP || r.Match.Direction == report.DirectionServer || !about {
			continue
		}
		if r.Action == report.ActionPass && len(r.Match.Ports) == 0 && !r.outboundOnly() {
			return list // later rules do not apply to the host
		}
		for _, port := range r.Match.Ports {
			is := func(d PortRange) bool { return d.Has(port.First()) }
			if r.Action != report.ActionPass && port.Single() && !slices.ContainsFunc(decided, is) && len(list) < maxServicesOf {
				list = append(list, netip.AddrPortFrom(a, port.First()))
			}
			decided = append(decided, port)
		}
	}
	return list
}
