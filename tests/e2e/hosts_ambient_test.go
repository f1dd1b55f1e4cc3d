package e2e

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// ambients are pods in Istio's ambient mode: instead of a sidecar there is a proxy of the node that has its sockets
// in the pod, and marks its own packets. What comes in is redirected to it or, in older versions, taken by TPROXY.
func ambients() []hostKind {
	needs := []string{"iptables-nft-restore"}
	return []hostKind{
		{name: "istioambient", needs: needs, sides: anySide, build: func(c *hostCell) []target { return c.ambient(ambientRedirect) }},
		{name: "istioambienttproxy", needs: needs, sides: anySide, build: func(c *hostCell) []target { return c.ambient(ambientTPROXY, "-tproxy") }},
	}
}

// proxyMark is the mark of the proxy's packets.
const proxyMark = 0x539

// ambient makes the server's, the client's or both hosts such a pod.
func (c *hostCell) ambient(inbound string, flags ...string) []target {
	c.serves(c.h2, "app", 7000)
	// A proxy borrows a client's address; the client's host does not know of the port that it takes.
	require.NoError(c.t, c.h1.SetSysctl("net.ipv4.ip_local_port_range", "32768 46999"))
	require.NoError(c.t, c.h2.SetSysctl("net.ipv4.ip_local_port_range", "47000 60999"))
	for _, h := range c.those() {
		mark := fmt.Sprint(proxyMark)
		c.sidecar(h, nil, append(append([]string{"-as-client", "-mark", mark}, flags...), "[::]:15006")...)
		c.sidecar(h, nil, "-as-client", "-mark", mark, "[::]:15001")
		c.ambientRoutes(h)
		c.restore(h, "nft", ambientRules+inbound)
	}
	return []target{{name: "by the node's proxy", port: 7000, want: "app at {{.Dest .Server 7000}} saw client", anyPort: true}}
}

// ambientRoutes bring what a server answers to a borrowed address to the proxy.
func (c *hostCell) ambientRoutes(h *testnet.Host) {
	for _, version := range []string{"-4", "-6"} {
		c.run(h, "ip", version, "rule", "add", "fwmark", "0x111/0xfff", "pref", "32764", "lookup", "100")
		c.run(h, "ip", version, "route", "add", "local", "default", "dev", "lo", "table", "100")
	}
}

// The rules of a pod: those of both versions, and how each takes what comes in.
const (
	ambientRules = `*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d {{.Localhost}} -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d {{.Localhost}} -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
`
	ambientRedirect = `*nat
-A ISTIO_PRERT ! -d {{.Localhost}} -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
COMMIT
`
	ambientTPROXY = `*mangle
-A ISTIO_PRERT ! -d {{.Localhost}} -p tcp -i lo -j ACCEPT
-A ISTIO_PRERT -p tcp --dport 15008 -m mark ! --mark 0x539/0xfff -j TPROXY --on-port 15008 --tproxy-mark 0x111/0xfff
-A ISTIO_PRERT -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ISTIO_PRERT ! -d {{.Localhost}} -p tcp -m mark ! --mark 0x539/0xfff -j TPROXY --on-port 15006 --tproxy-mark 0x111/0xfff
COMMIT
`
)
