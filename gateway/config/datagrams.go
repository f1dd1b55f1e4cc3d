package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/gateway/report"
)

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
