package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

func TestServicesOf(t *testing.T) {
	peers := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	c := Config{Policy: []Rule{
		{Match: Match{Ports: Ports(22)}, Action: report.ActionPass},
		{Match: Match{Ports: Ports(8080), Direction: report.DirectionServer}, Action: report.ActionAccelerate},
		{Match: Match{Proto: report.ProtoUDP, Ports: Ports(53)}, Action: report.ActionAccelerate},
		{Match: Match{Ports: Ports(6379, 22), Peers: peers}, Action: report.ActionAccelerate},
		{Match: Match{Ports: append(Ports(6379, 5201), newPortRange(6000, 6001))}, Action: report.ActionAuto},
		{Action: report.ActionAccelerate},
	}}.WithDefaults()
	services := func(addr string) (ports []uint16) {
		for _, s := range c.ServicesOf(netip.MustParseAddr(addr)) {
			ports = append(ports, s.Port())
		}
		return ports
	}
	require.Equal(t, []uint16{6379, 5201}, services("10.0.0.9"))
	require.Equal(t, []uint16{6379, 5201}, services("::ffff:10.0.0.9"))
	require.Equal(t, []uint16{6379, 5201}, services("fd00::1"))
	whole := c.Policy
	c.Policy = append([]Rule{{Match: Match{Peers: peers}, Action: report.ActionPass}}, whole...)
	require.Empty(t, services("10.0.0.9"), "an earlier rule passes all of the host")
	require.Equal(t, []uint16{6379, 5201}, services("10.0.1.9"))
	c.Policy[0].Match.Users = []User{{ID: 7}}
	require.Equal(t, []uint16{6379, 5201}, services("10.0.0.9"), "of a user")
	c.Policy = whole
	for port := range uint16(30) {
		c.Policy = append(c.Policy, Rule{Match: Match{Ports: Ports(7000 + port)}, Action: report.ActionAccelerate})
	}
	require.Len(t, services("10.0.1.1"), maxServicesOf)
}
