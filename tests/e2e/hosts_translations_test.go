package e2e

import "context"

// translations change addresses and ports on the way to the server.
func translations() []hostKind {
	redirected := func(c *hostCell) []target {
		c.serves(c.h2, "app", 7000, 7001, 7003, 7011, 7013)
		return []target{
			{name: "somebody on the port", port: 7000, want: "app at {{.Dest .Server 7001}} saw client"},
			{name: "nobody on the port", port: 7010, want: "app at {{.Dest .Server 7011}} saw client"},
			{name: "other source", port: 7003, bind: "{{.Client}}", want: "app at {{.Dest .Server 7003}} saw client"},
			{name: "redirected source", port: 7003, bind: "{{.Alias}}", want: "app at {{.Dest .Server 7013}} saw client"},
			{name: "other source again", port: 7003, bind: "{{.Client}}", want: "app at {{.Dest .Server 7003}} saw client"},
		}
	}
	return []hostKind{
		{name: "redirect", sides: []string{serverSide}, build: func(c *hostCell) []target {
			targets := redirected(c)
			c.nft(c.h2, `table {{.NFT}} redirections {
	chain pre {
		type nat hook prerouting priority dstnat; policy accept;
		tcp dport 7000 redirect to :7001
		tcp dport 7010 redirect to :7011
		{{.IP}} saddr {{.Alias}} tcp dport 7003 redirect to :7013
	}
}`)
			return targets
		}},
		{name: "redirectlegacy", needs: []string{"iptables-legacy-restore"}, sides: []string{serverSide}, build: func(c *hostCell) []target {
			targets := redirected(c)
			c.restore(c.h2, "legacy", `*nat
-A PREROUTING -p tcp --dport 7000 -j REDIRECT --to-ports 7001
-A PREROUTING -p tcp --dport 7010 -j REDIRECT --to-ports 7011
-A PREROUTING -s {{.Alias}} -p tcp --dport 7003 -j REDIRECT --to-ports 7013
COMMIT
`)
			return targets
		}},
		{name: "published", sides: []string{serverSide}, build: (*hostCell).published},
		{name: "snat", sides: []string{clientSide}, build: func(c *hostCell) []target {
			c.serves(c.h2, "app", 7000)
			c.nft(c.h1, `table {{.NFT}} translations {
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		oifname "eth0" tcp dport 7000 snat to {{.Alias}}
	}
}`)
			return []target{{name: "other address", port: 7000, bind: "{{.Client}}", want: "app at {{.Dest .Server 7000}} saw {{.Alias}}"}}
		}},
		{name: "outputdnat", sides: []string{clientSide}, build: (*hostCell).outputDNAT},
	}
}

// outputDNAT sets up a client whose own connections go elsewhere: to another port, to the server for an address that
// no host has, to another host, to the client itself.
func (c *hostCell) outputDNAT() []target {
	c.serves(c.h2, "app", 7000, 7001, 7003)
	c.serves(c.h3, "third", 7003)
	c.serves(c.h1, "home", 7004)
	c.nft(c.h1, `table {{.NFT}} translations {
	chain out {
		type nat hook output priority -100; policy accept;
		{{.IP}} daddr {{.Server}} tcp dport 7000 dnat to :7001
		{{.IP}} daddr {{.Cluster}} tcp dport 7000 dnat to {{.Dest .Server 7003}}
		{{.IP}} daddr {{.Server}} tcp dport 7003 dnat to {{.Third}}
		{{.IP}} daddr {{.Server}} tcp dport 7005 redirect to :7004
	}
}`)
	return []target{
		{name: "other port", port: 7000, want: "app at {{.Dest .Server 7001}} saw client"},
		{name: "other address", to: "{{.Cluster}}", port: 7000, want: "app at {{.Dest .Server 7003}} saw client"},
		{name: "other host", port: 7003, want: "third at {{.Dest .Third 7003}} saw client"},
		{name: "home", port: 7005, want: "home at {{if .V6}}{{.Dest \"::1\" 7004}}{{else}}{{.Dest \"127.0.0.1\" 7004}}{{end}} saw client"},
		// From another address: if one of two connections from one port is translated to the destination of the
		// other, a kernel without gateways loses the SYN-ACK of the second while the first is in TIME_WAIT.
		{name: "as it is", port: 7001, bind: "{{.Alias}}", want: "app at {{.Dest .Server 7001}} saw client"},
	}
}

// published sets up what engines do with a container's ports, with each way in which they keep others off the port: a
// proxy that would serve it, too (docker), a listener that never accepts (podman), nothing.
func (c *hostCell) published() []target {
	c.behind(7000, 7004, 7005)
	for _, f := range c.families() {
		c.forwards(c.h2, c.h2.AppCommand(context.Background(), "forward", "-to", f.Dest(f.Pod, 7000), f.Dest(f.Server, 7000)))
	}
	c.listen(c.h2, "bound", 7004)
	c.nft(c.h2, `table {{.NFT}} translations {
	chain pre {
		type nat hook prerouting priority dstnat; policy accept;
		fib daddr type local tcp dport { 7000, 7004, 7005 } dnat to {{.Pod}}
	}
	chain out {
		type nat hook output priority -100; policy accept;
		fib daddr type local tcp dport { 7000, 7004, 7005 } dnat to {{.Pod}}
	}
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		{{.IP}} saddr {{.PodNet}} oifname "eth0" masquerade
	}
}`)
	return []target{
		{name: "a proxy on the port", port: 7000, want: "pod at {{.Dest .Pod 7000}} saw client"},
		{name: "somebody who holds the port", port: 7004, want: "pod at {{.Dest .Pod 7004}} saw client"},
		{name: "nobody on the port", port: 7005, want: "pod at {{.Dest .Pod 7005}} saw client"},
	}
}
