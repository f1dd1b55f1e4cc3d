package e2e

import "fmt"

// balancers are hosts whose kernel balances load (IPVS): a director in front of its servers, such a server, and a
// cluster's node, whose own programs reach services through it.
func balancers() []hostKind {
	needs := []string{"ipvsadm"}
	return []hostKind{
		{name: "ipvsmasq", needs: needs, sides: []string{serverSide}, kernel: ipvs, build: (*hostCell).ipvsMasquerading},
		{name: "ipvsdirect", needs: needs, sides: []string{serverSide}, kernel: ipvs, build: (*hostCell).ipvsDirect},
		{name: "ipvsreal", needs: needs, sides: []string{serverSide}, kernel: ipvs, build: (*hostCell).ipvsReal},
		{name: "ipvsnode", needs: append([]string{"iptables-nft-restore"}, needs...), sides: []string{clientSide}, kernel: ipvs, build: (*hostCell).ipvsNode},
	}
}

// ipvs is a file that exists on kernels with IPVS.
const ipvs = "/proc/net/ip_vs"

// ipvsMasquerading is a director that translates addresses, with servers of its own on a port that it balances.
func (c *hostCell) ipvsMasquerading() []target {
	c.behind(7000, 7001, 7009)
	c.serves(c.h2, "director", 7000)
	for _, f := range c.families() {
		for _, port := range []int{7000, 7001, 7010} {
			c.run(c.h2, "ipvsadm", "-A", "-t", f.Dest(f.Server, port), "-s", "rr")
			real := port
			if port == 7010 {
				real = 7009
			}
			c.run(c.h2, "ipvsadm", "-a", "-t", f.Dest(f.Server, port), "-r", f.Dest(f.Pod, real), "-m")
		}
	}
	return []target{
		{name: "a listener beside", port: 7000, want: "pod at {{.Dest .Pod 7000}} saw client"},
		{name: "nobody on the port", port: 7001, want: "pod at {{.Dest .Pod 7001}} saw client"},
		{name: "another port", port: 7010, want: "pod at {{.Dest .Pod 7009}} saw client"},
	}
}

// ipvsDirect is a director whose servers also have its address and answer clients themselves.
func (c *hostCell) ipvsDirect() []target {
	c.sysctl(c.h3, "net.ipv4.conf.all.arp_ignore", "1")
	c.sysctl(c.h3, "net.ipv4.conf.all.arp_announce", "2")
	c.serves(c.h2, "director", 7003)
	for _, f := range c.families() {
		own := fmt.Sprintf("%s/%d", f.Virtual, f.Bits())
		c.run(c.h2, "ip", "addr", "add", own, "dev", "eth0")
		c.run(c.h3, "ip", "addr", "add", own, "dev", "lo")
		c.run(c.h2, "ipvsadm", "-A", "-t", f.Dest(f.Virtual, 7000), "-s", "rr")
		c.run(c.h2, "ipvsadm", "-a", "-t", f.Dest(f.Virtual, 7000), "-r", f.Dest(f.Third, 7000), "-g")
	}
	c.serves(c.h3, "real", 7000)
	return []target{
		{name: "balanced", to: "{{.Virtual}}", port: 7000, want: "real at {{.Dest .Virtual 7000}} saw client"},
		{name: "the director's own", to: "{{.Virtual}}", port: 7003, want: "director at {{.Dest .Virtual 7003}} saw client"},
	}
}

// ipvsReal is a server behind a director, which also has the director's address. What a client sends comes from the
// director, unchanged or in a tunnel; the server answers the client itself.
func (c *hostCell) ipvsReal() []target {
	for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2", "rp_filter": "0"} {
		c.sysctl(c.h2, "net.ipv4.conf.all."+name, value)
	}
	c.sysctl(c.h2, "net.ipv4.conf.tunl0.rp_filter", "0")
	c.run(c.h2, "ip", "link", "set", "tunl0", "up")
	c.run(c.h2, "ip", "link", "set", "ip6tnl0", "up")
	c.serves(c.h3, "director", 7003)
	for _, f := range c.families() {
		own := fmt.Sprintf("%s/%d", f.Virtual, f.Bits())
		// A server drops tunnels that begin at one of its own addresses, so the director must not use this one as a
		// source.
		c.run(c.h3, "ip", "addr", "add", own, "dev", "eth0", "preferred_lft", "0")
		c.run(c.h2, "ip", "addr", "add", own, "dev", "lo")
		for port, way := range map[int]string{7000: "-i", 7001: "-g"} {
			c.run(c.h3, "ipvsadm", "-A", "-t", f.Dest(f.Virtual, port), "-s", "rr")
			c.run(c.h3, "ipvsadm", "-a", "-t", f.Dest(f.Virtual, port), "-r", f.Dest(f.Server, port), way)
		}
	}
	c.serves(c.h2, "real", 7000, 7001)
	return []target{
		{name: "by a tunnel", to: "{{.Virtual}}", port: 7000, want: "real at {{.Dest .Virtual 7000}} saw client", alone: "address"},
		{name: "as it is", to: "{{.Virtual}}", port: 7001, want: "real at {{.Dest .Virtual 7001}} saw client"},
		{name: "the director's own", to: "{{.Virtual}}", port: 7003, want: "director at {{.Dest .Virtual 7003}} saw client"},
		{name: "past the director", port: 7000, want: "real at {{.Dest .Server 7000}} saw client"},
	}
}

// ipvsNode is a client with the addresses of services on a device of its own, as kube-proxy sets up nodes.
func (c *hostCell) ipvsNode() []target {
	c.serves(c.h2, "app", 7000, 7001)
	c.run(c.h1, "ip", "link", "add", "kube-ipvs0", "type", "dummy")
	c.sysctl(c.h1, "net.ipv4.vs.conntrack", "1")
	for _, f := range c.families() {
		c.run(c.h1, "ip", "addr", "add", fmt.Sprintf("%s/%d", f.Cluster, f.Bits()), "dev", "kube-ipvs0")
		for _, port := range []int{7000, 7010} {
			real := min(port, 7001)
			c.run(c.h1, "ipvsadm", "-A", "-t", f.Dest(f.Cluster, port), "-s", "rr")
			c.run(c.h1, "ipvsadm", "-a", "-t", f.Dest(f.Cluster, port), "-r", f.Dest(f.Server, real), "-m")
		}
	}
	c.restore(c.h1, "nft", `*nat
-A POSTROUTING -m ipvs --vaddr {{.Cluster}} -j MASQUERADE
COMMIT
`)
	// Of two addresses of the device the kernel takes the first, for IPv6 the last.
	const masqueraded = " saw {{if .V6}}{{.Alias}}{{else}}{{.Client}}{{end}}"
	return []target{
		{name: "a service", to: "{{.Cluster}}", port: 7000, want: "app at {{.Dest .Server 7000}}" + masqueraded, anyPort: true},
		{name: "a service on another port", to: "{{.Cluster}}", port: 7010, want: "app at {{.Dest .Server 7001}}" + masqueraded, anyPort: true},
		// Conntrack gives a direct connection another port if one through the service recently came from this port to
		// the same end.
		{name: "no service", port: 7000, want: "app at {{.Dest .Server 7000}} saw client", anyPort: true},
	}
}
