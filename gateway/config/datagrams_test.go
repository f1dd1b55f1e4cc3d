package config

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDatagramPort(t *testing.T) {
	for text, want := range map[string]uint16{"": 4790, "datagram_port:": 4790, "datagram_port: 0": 0, "datagram_port: 7": 7} {
		f := parseString(t, text)
		require.Equal(t, want, f.Config.DatagramPort.Port(), text)
		out, err := f.YAML()
		require.NoError(t, err)
		require.Equal(t, want, parseString(t, string(out)).Config.DatagramPort.Port(), "%s", out)
	}
	require.Equal(t, NoPort, Config{DatagramPort: NoPort}.WithDefaults().DatagramPort)
	require.NoError(t, validated(Config{DatagramPort: NoPort}.WithDefaults()))
	require.ErrorContains(t, validated(Config{DatagramPort: -2}.WithDefaults()), "datagram_port: -2 is not between 1 and 49151")
}

func TestDatagramsOfTheGatewayItselfAreNeverCarried(t *testing.T) {
	for _, text := range []string{
		"policy: [{match: {proto: udp, ports: [53, 4790]}, action: accelerate}]",
		"policy: [{match: {proto: udp, ports: [53, 4791]}, action: auto}]",
		"policy: [{match: {proto: udp, ports: [53, 4793]}, action: accelerate}]",
		"datagram_port: 9\npolicy: [{match: {proto: udp, ports: [53, 9]}, action: accelerate}]",
	} {
		_, err := parseConfig("f", []byte(text), testUsers)
		require.ErrorContains(t, err, "policy[0].match.ports[1]: ", text)
		require.ErrorContains(t, err, "is a port of the gateway itself", text)
	}
	parseString(t, "policy: [{match: {proto: udp, ports: [4790]}}, {match: {ports: [4790]}, action: accelerate}]")
}

func TestNamesDatagramPeer(t *testing.T) {
	c := parseString(t, `
policy:
  - { match: { proto: udp, peers: [10.0.0.0/24] } }
  - { match: { peers: [10.0.1.0/24] }, action: accelerate }
  - { match: { proto: udp, peers: [10.0.2.0/24, "fd00::/64"] }, action: accelerate }
  - { match: { proto: udp }, action: accelerate }
`).Config
	for text, want := range map[string]bool{
		"10.0.0.1": false, "10.0.1.1": false, "10.0.2.1": true, "::ffff:10.0.2.1": true, "fd00::1": true, "fd01::1": false,
	} {
		require.Equal(t, want, c.NamesDatagramPeer(netip.MustParseAddr(text)), text)
	}
}
