package e2e

import (
	"github.com/smcgw/smcgw/lab/testnet"
)

// hostKinds returns all kinds of hosts.
func hostKinds() []hostKind {
	var all []hostKind
	all = append(all, packetFilters()...)
	all = append(all, sets()...)
	all = append(all, translations()...)
	all = append(all, engines()...)
	all = append(all, clusters()...)
	all = append(all, balancers()...)
	all = append(all, sockmaps()...)
	all = append(all, ambients()...)
	return append(all, sidecars()...)
}

var anySide = []string{clientSide, serverSide, bothSides}

// Ports of a server behind a firewall. Any host may reach openPort and closedPort, which has no listener. A server
// listens on refusedPort, which the firewall refuses.
const (
	openPort    = 7000
	closedPort  = 7009
	refusedPort = 7098
)

// packetFilters drop what no rule has allowed, and check where packets come from.
func packetFilters() []hostKind {
	return []hostKind{
		{
			name: "firewalld", needs: []string{"firewalld", "dbus-daemon"}, sides: anySide,
			build: firewall((*hostCell).firewalld, `connect: {{if .V6}}EACCES{{else}}EHOSTUNREACH{{end}}`),
		},
		{name: "ufw", needs: []string{"ufw"}, sides: anySide, build: firewall((*hostCell).ufw, "connect: GAVE_UP")},
		{
			name: "nixos", needs: []string{"iptables-nft-restore"}, sides: anySide,
			build: firewall(func(c *hostCell, h *testnet.Host) { c.restore(h, "nft", nixosRules("")) }, "connect: GAVE_UP"),
		},
		{
			name: "nixosloose", needs: []string{"iptables-legacy-restore"}, sides: anySide,
			build: firewall(func(c *hostCell, h *testnet.Host) { c.restore(h, "legacy", nixosRules("--loose")) }, "connect: GAVE_UP"),
		},
		{name: "fib", sides: anySide, build: firewall(ruleset(fibRules), "connect: ECONNREFUSED")},
		{name: "antispoof", sides: anySide, build: firewall(ruleset(antispoofRules), "connect: ECONNREFUSED")},
		{name: "outbound", sides: anySide, build: firewall(ruleset(outboundRules), "connect: GAVE_UP")},
		{name: "nonlocal", sides: anySide, build: firewall(ruleset(nonlocalRules), "connect: GAVE_UP")},
		{name: "notrack", sides: anySide, build: firewall(ruleset(notrackRules), "connect: GAVE_UP")},
		{name: "maxseg", sides: anySide, build: firewall(ruleset(maxsegRules), "connect: ECONNREFUSED")},
		{name: "sourcerouting", sides: anySide, build: firewall((*hostCell).sourceRouting, "")},
		{name: "rpfilter", sides: anySide, build: firewall((*hostCell).rpFilter, "")},
		{name: "synproxy", needs: []string{"iptables-nft-restore"}, sides: []string{serverSide}, build: firewall(func(c *hostCell, h *testnet.Host) {
			c.synproxySysctls(h)
			c.restore(h, "nft", synproxyRules)
		}, "")},
		{name: "synproxynft", sides: []string{serverSide}, build: firewall(func(c *hostCell, h *testnet.Host) {
			c.synproxySysctls(h)
			c.nft(h, synproxyNFT)
		}, "")},
	}
}

// firewall sets up a server or a client with these rules. What is refused has the outcome refused; if that is empty,
// nothing is refused.
func firewall(rules func(*hostCell, *testnet.Host), refused string) func(*hostCell) []target {
	return func(c *hostCell) []target {
		c.serves(c.h2, "app", openPort, refusedPort)
		for _, h := range c.those() {
			rules(c, h)
		}
		targets := []target{
			{name: "open", port: openPort, want: "app at {{.Dest .Server 7000}} saw client"},
			{name: "closed", port: closedPort, want: "connect: ECONNREFUSED"},
		}
		if c.has(c.h2) && refused != "" {
			targets = append(targets, target{name: "refused", port: refusedPort, want: refused})
		}
		return targets
	}
}

// ruleset returns a function that gives nft rules to a host.
func ruleset(rules string) func(*hostCell, *testnet.Host) {
	return func(c *hostCell, h *testnet.Host) { c.nft(h, rules) }
}

func (c *hostCell) firewalld(h *testnet.Host) {
	privately(c.t, h, nil, `
		mkdir -p /run/dbus
		firewall-offline-cmd --add-port=7000/tcp --add-port=7009/tcp --add-port=4791/udp
		dbus-daemon --system --fork --nopidfile
		firewalld --nofork --nopid &
		until firewall-cmd --state >/dev/null 2>&1; do sleep 0.05; done
		echo ready
		wait`, "empty=/run", "empty=/var/log", "bind="+copied(c.t, "/etc/firewalld")+":/etc/firewalld")
	c.nftHas(h, "fib saddr . mark . iif oif missing drop") // the default of firewalld that matters here
}

// ufw reads its defaults from a file that has IPV6=yes.
func (c *hostCell) ufw(h *testnet.Host) {
	privately(c.t, h, nil, `
		ufw allow 7000,7009/tcp
		ufw allow 4791/udp
		ufw --force enable
		echo ready
		exec sleep infinity`, "empty=/run", "bind="+copied(c.t, "/etc/ufw")+":/etc/ufw")
	c.nftHas(h, "ufw6-user-input")
}

// fibRules is firewalld's reverse path filter for both families, without the mark and with a rejection instead of a
// drop.
const fibRules = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		{{if .V6}}icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept{{end}}
		fib saddr . iif oif missing drop
	}
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 7098 reject with tcp reset
	}
}`

// antispoofRules drop what comes from outside with an address of this host.
const antispoofRules = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		iifname != "lo" fib saddr type local drop
	}
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 7098 reject with tcp reset
	}
}`

// outboundRules allow packets to leave by known devices only.
const outboundRules = `table {{.NFT}} guard {
	chain output {
		type filter hook output priority filter; policy drop;
		oifname { "lo", "eth0" } accept
	}
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 7098 drop
	}
}`

// nonlocalRules drop first what is not for this host.
const nonlocalRules = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority mangle; policy accept;
		fib daddr . iif type != { local, broadcast, multicast } drop
	}
	chain input {
		type filter hook input priority filter; policy drop;
		iifname "lo" accept
		{{if .V6}}icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept{{end}}
		ct state invalid drop
		ct state established,related accept
		iifname "eth0" tcp dport { 7000, 7009 } accept
		iifname "eth0" udp dport 4791 accept
	}
}`

// notrackRules allow the service without connection tracking, as busy hosts do, and let nothing else in or out.
const notrackRules = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		tcp dport { 7000, 7009 } notrack
		tcp sport { 7000, 7009 } notrack
	}
	chain out {
		type filter hook output priority raw; policy accept;
		tcp dport { 7000, 7009 } notrack
		tcp sport { 7000, 7009 } notrack
	}
	chain input {
		type filter hook input priority filter; policy drop;
		iifname "lo" accept
		{{if .V6}}icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept{{end}}
		iifname "eth0" tcp dport { 7000, 7009 } accept
		iifname "eth0" tcp sport { 7000, 7009 } accept
		iifname "eth0" udp dport 4791 accept
	}
	chain output {
		type filter hook output priority filter; policy drop;
		oifname "lo" accept
		{{if .V6}}icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept{{end}}
		oifname "eth0" tcp sport { 7000, 7009 } accept
		oifname "eth0" tcp dport { 7000, 7009 } accept
		oifname "eth0" udp dport 4791 accept
	}
}`

// maxsegRules drop what announces segments longer than any Ethernet's: nothing that comes from one, or leaves by one,
// does.
const maxsegRules = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		tcp option maxseg size > 1500 drop
	}
	chain out {
		type filter hook output priority filter; policy accept;
		tcp option maxseg size > 1500 drop
	}
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 7098 reject with tcp reset
	}
}`

// sourceRouting sets up rules by source address before all others, as hosts with several networks do to answer by the
// network that was asked.
func (c *hostCell) sourceRouting(h *testnet.Host) {
	for _, f := range c.families() {
		own, version := f.Client, "-4"
		if h == c.h2 {
			own = f.Server
		}
		if f.V6 {
			version = "-6"
		}
		router := map[bool]string{false: c.net.RouterAddr4.String(), true: c.net.RouterAddr6.String()}[f.V6]
		near := map[bool]string{false: "10.77.0.0/24", true: "fd77::/64"}[f.V6]
		c.run(h, "ip", version, "route", "add", near, "dev", "eth0", "table", "123")
		c.run(h, "ip", version, "route", "add", "default", "via", router, "table", "123")
		c.run(h, "ip", version, "rule", "add", "pref", "50", "from", own, "lookup", "123")
	}
}

// rpFilter is the kernel's own reverse path filter for IPv4.
func (c *hostCell) rpFilter(h *testnet.Host) {
	c.sysctl(h, "net.ipv4.conf.all.rp_filter", "1")
	c.sysctl(h, "net.ipv4.conf.eth0.rp_filter", "1")
}

func (c *hostCell) synproxySysctls(h *testnet.Host) {
	c.sysctl(h, "net.ipv4.tcp_syncookies", "1")
	c.sysctl(h, "net.ipv4.tcp_timestamps", "1")
	c.sysctl(h, "net.netfilter.nf_conntrack_tcp_loose", "0")
}

// synproxyRules are from the manual iptables-extensions(8).
const synproxyRules = `*raw
-A PREROUTING -i eth0 -p tcp -m tcp --syn --dport 7000 -j CT --notrack
COMMIT
*filter
-A INPUT -i eth0 -p tcp -m tcp --dport 7000 -m conntrack --ctstate INVALID,UNTRACKED -j SYNPROXY --sack-perm --timestamp --wscale 7 --mss 1460
-A INPUT -m conntrack --ctstate INVALID -j DROP
COMMIT
`

const synproxyNFT = `table {{.NFT}} guard {
	chain pre {
		type filter hook prerouting priority raw; policy accept;
		tcp dport 7000 tcp flags syn notrack
	}
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 7000 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
		ct state invalid drop
	}
}`

// nixosRules are what firewall-iptables.nix generates from a configuration that allows three ports.
func nixosRules(loose string) string {
	return `*mangle
:nixos-fw-rpfilter - [0:0]
-A nixos-fw-rpfilter -m rpfilter --validmark ` + loose + ` -j RETURN
{{if not .V6}}-A nixos-fw-rpfilter -p udp --sport 67 --dport 68 -j RETURN
-A nixos-fw-rpfilter -s 0.0.0.0 -d 255.255.255.255 -p udp --sport 68 --dport 67 -j RETURN
{{end}}-A nixos-fw-rpfilter -j DROP
-A PREROUTING -j nixos-fw-rpfilter
COMMIT
*filter
:nixos-fw - [0:0]
:nixos-fw-accept - [0:0]
:nixos-fw-log-refuse - [0:0]
:nixos-fw-refuse - [0:0]
-A nixos-fw-accept -j ACCEPT
-A nixos-fw-refuse -j DROP
-A nixos-fw-log-refuse -m pkttype ! --pkt-type unicast -j nixos-fw-refuse
-A nixos-fw-log-refuse -j nixos-fw-refuse
-A nixos-fw -i lo -j nixos-fw-accept
-A nixos-fw -m conntrack --ctstate ESTABLISHED,RELATED -j nixos-fw-accept
-A nixos-fw -p tcp --dport 7000 -j nixos-fw-accept
-A nixos-fw -p tcp --dport 7009 -j nixos-fw-accept
-A nixos-fw -p udp --dport 4791 -j nixos-fw-accept
{{if .V6}}-A nixos-fw -p icmpv6 --icmpv6-type redirect -j DROP
-A nixos-fw -p icmpv6 --icmpv6-type 139 -j DROP
-A nixos-fw -p icmpv6 -j nixos-fw-accept
{{else}}-A nixos-fw -p icmp --icmp-type echo-request -j nixos-fw-accept
{{end}}-A nixos-fw -j nixos-fw-log-refuse
-A INPUT -j nixos-fw
COMMIT
`
}
