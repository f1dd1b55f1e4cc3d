package e2e

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/smcgw/smcgw/lab/testnet"
)

// sidecars are Istio pods: everything inbound goes to port 15006 of a proxy, and everything outbound to its port 15001.
func sidecars() []hostKind {
	needs := []string{"iptables-nft-restore"}
	return []hostKind{
		{name: "istio", needs: needs, sides: anySide, build: (*hostCell).istio},
		{name: "istiotproxy", needs: needs, sides: []string{serverSide}, build: (*hostCell).istioTPROXY},
	}
}

// sidecarID is the user of the proxy, whose own connections are not redirected.
const sidecarID = 1337

// istio sets up a server behind its sidecar, a client with one, or both.
func (c *hostCell) istio() []target {
	c.serves(c.h2, "app", 7000)
	saw := "client" // what the server sees: the client's sidecar is the client, from another port
	if c.has(c.h1) {
		c.sidecar(c.h1, &syscall.Credential{Uid: sidecarID, Gid: sidecarID}, "[::]:15001")
		c.restore(c.h1, "nft", istioRules+"-A ISTIO_OUTPUT -j ISTIO_REDIRECT\nCOMMIT\n")
	}
	if c.has(c.h2) {
		saw = "{{.Sidecar}}"
		c.inbound("[::]:15006", &syscall.Credential{Uid: sidecarID, Gid: sidecarID})
		c.restore(c.h2, "nft", istioRules+`-A PREROUTING -p tcp -j ISTIO_INBOUND
-A ISTIO_INBOUND -p tcp --dport 15008 -j RETURN
-A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
COMMIT
`)
	}
	return []target{{name: "behind sidecars", port: 7000, want: "app at {{.Dest .Server 7000}} saw " + saw, anyPort: true}}
}

// istioTPROXY sets up a server whose sidecar gets connections with their true addresses.
func (c *hostCell) istioTPROXY() []target {
	c.serves(c.h2, "app", 7000)
	c.inbound("[::]:15006", &syscall.Credential{Gid: sidecarID}, "-tproxy")
	for _, version := range []string{"-4", "-6"} {
		c.run(c.h2, "ip", version, "rule", "add", "fwmark", "1337", "lookup", "133")
	}
	c.run(c.h2, "ip", "-4", "route", "add", "local", "default", "dev", "lo", "table", "133")
	c.run(c.h2, "ip", "-6", "route", "add", "local", "default", "dev", "lo", "table", "133")
	c.restore(c.h2, "nft", istioTPROXYRules+istioRules+"COMMIT\n")
	return []target{{name: "behind a transparent sidecar", port: 7000, want: "app at {{.Dest .Server 7000}} saw {{.Sidecar}}"}}
}

// inbound starts the sidecar of a server, which dials from addresses of its own.
func (c *hostCell) inbound(address string, as *syscall.Credential, flags ...string) {
	c.t.Helper()
	c.run(c.h2, "ip", "-6", "addr", "add", "::6/128", "dev", "lo", "nodad")
	c.sidecar(c.h2, as, append(flags, "-from4", "127.0.0.6", "-from6", "::6", address)...)
}

func (c *hostCell) sidecar(h *testnet.Host, as *syscall.Credential, args ...string) {
	c.t.Helper()
	cmd := h.Command(context.Background(), filepath.Join(rootOf(c.t), "apps"), append([]string{"forward"}, args...)...)
	cmd.SysProcAttr.Credential = as
	c.forwards(h, cmd)
}

// istioRules are the rules of both directions, without those that send packets there.
const istioRules = `*nat
:ISTIO_INBOUND - [0:0]
:ISTIO_REDIRECT - [0:0]
:ISTIO_IN_REDIRECT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
-A OUTPUT -p tcp -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -o lo -s {{.Sidecar}} -j RETURN
-A ISTIO_OUTPUT -o lo ! -d {{.Localhost}} -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -o lo ! -d {{.Localhost}} -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT
-A ISTIO_OUTPUT -o lo -m owner ! --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -m owner --gid-owner 1337 -j RETURN
-A ISTIO_OUTPUT -d {{.Localhost}} -j RETURN
`

const istioTPROXYRules = `*mangle
:ISTIO_DIVERT - [0:0]
:ISTIO_TPROXY - [0:0]
:ISTIO_INBOUND - [0:0]
-A ISTIO_DIVERT -j MARK --set-mark 1337
-A ISTIO_DIVERT -j ACCEPT
-A ISTIO_TPROXY ! -d {{.Localhost}} -p tcp -j TPROXY --tproxy-mark 1337/0xffffffff --on-port 15006
-A PREROUTING -p tcp -j ISTIO_INBOUND
-A PREROUTING -p tcp -m mark --mark 1337 -j CONNMARK --save-mark
-A ISTIO_INBOUND -p tcp -m mark --mark 1337 -j RETURN
-A ISTIO_INBOUND -p tcp -s {{.Sidecar}} -i lo -j RETURN
-A ISTIO_INBOUND -p tcp -i lo -m mark ! --mark 1338 -j RETURN
-A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ISTIO_DIVERT
-A ISTIO_INBOUND -p tcp -j ISTIO_TPROXY
-A OUTPUT -p tcp -o lo -m mark --mark 1337 -j RETURN
-A OUTPUT ! -d {{.Localhost}} -p tcp -o lo -m owner --uid-owner 1337 -j MARK --set-mark 1338
-A OUTPUT ! -d {{.Localhost}} -p tcp -o lo -m owner --gid-owner 1337 -j MARK --set-mark 1338
-A OUTPUT -p tcp -m connmark --mark 1337 -j CONNMARK --restore-mark
COMMIT
`
