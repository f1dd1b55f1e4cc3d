package e2e

import "github.com/smcgw/smcgw/lab/testnet"

// clusters are Kubernetes nodes with both kinds of rules of kube-proxy: a service with an endpoint in a pod on the
// server's node, also by a port of the node, and one with an endpoint in the node's own network.
func clusters() []hostKind {
	return []hostKind{
		{name: "kubeiptables", needs: []string{"iptables-legacy-restore"}, sides: anySide, build: cluster(func(c *hostCell, h *testnet.Host) {
			c.restore(h, "legacy", kubeIptables)
		})},
		{name: "kubenft", sides: anySide, build: cluster(ruleset(kubeNFT))},
	}
}

// Ports of the node. One has a listener, by which old nodes reserve it for the service.
const (
	nodePort     = 7005
	heldNodePort = 7004
)

func cluster(rules func(*hostCell, *testnet.Host)) func(*hostCell) []target {
	return func(c *hostCell) []target {
		c.behind(7000)
		c.serves(c.h2, "app", 7001)
		c.listen(c.h2, "bound", heldNodePort)
		for _, h := range c.those() {
			rules(c, h)
		}
		// Where services are translated, conntrack gives a direct connection another port if one through a service
		// recently came from this port to the same end.
		drawn := c.has(c.h1)
		targets := []target{
			{name: "beside services", port: 7001, want: "app at {{.Dest .Server 7001}} saw client", anyPort: drawn},
			{name: "pod", to: "{{.Pod}}", port: 7000, want: "pod at {{.Dest .Pod 7000}} saw client", anyPort: drawn},
		}
		if c.has(c.h1) {
			targets = append(targets,
				target{name: "service", to: "{{.Cluster}}", port: 7000, want: "pod at {{.Dest .Pod 7000}} saw client", anyPort: true},
				target{name: "service of a node", to: "{{.Headless}}", port: 7000, want: "app at {{.Dest .Server 7001}} saw client", anyPort: true})
		}
		if c.has(c.h2) {
			const masqueraded = "pod at {{.Dest .Pod 7000}} saw {{.Inner}}"
			targets = append(targets,
				target{name: "node port", port: nodePort, want: masqueraded},
				target{name: "node port that is held", port: heldNodePort, want: masqueraded})
		}
		return targets
	}
}

const kubeIptables = `*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-EXT-POD - [0:0]
:KUBE-SVC-POD - [0:0]
:KUBE-SVC-NODE - [0:0]
:KUBE-SEP-POD - [0:0]
:KUBE-SEP-NODE - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d {{.Cluster}} -p tcp -m tcp --dport 7000 -j KUBE-SVC-POD
-A KUBE-SERVICES -d {{.Headless}} -p tcp -m tcp --dport 7000 -j KUBE-SVC-NODE
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 7004 -j KUBE-EXT-POD
-A KUBE-NODEPORTS -p tcp -m tcp --dport 7005 -j KUBE-EXT-POD
-A KUBE-EXT-POD -j KUBE-MARK-MASQ
-A KUBE-EXT-POD -j KUBE-SVC-POD
-A KUBE-SVC-POD ! -s {{.PodNet}} -d {{.Cluster}} -p tcp -m tcp --dport 7000 -j KUBE-MARK-MASQ
-A KUBE-SVC-POD -m statistic --mode random --probability 0.5 -j KUBE-SEP-POD
-A KUBE-SVC-POD -j KUBE-SEP-POD
-A KUBE-SVC-NODE ! -s {{.PodNet}} -d {{.Headless}} -p tcp -m tcp --dport 7000 -j KUBE-MARK-MASQ
-A KUBE-SVC-NODE -j KUBE-SEP-NODE
-A KUBE-SEP-POD -s {{.Pod}} -j KUBE-MARK-MASQ
-A KUBE-SEP-POD -p tcp -m tcp -j DNAT --to-destination {{.Dest .Pod 7000}}
-A KUBE-SEP-NODE -s {{.Server}} -j KUBE-MARK-MASQ
-A KUBE-SEP-NODE -p tcp -m tcp -j DNAT --to-destination {{.Dest .Server 7001}}
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
`

const kubeNFT = `table {{.NFT}} kube-proxy {
	map service-ips {
		type {{if .V6}}ipv6_addr{{else}}ipv4_addr{{end}} . inet_proto . inet_service : verdict
		elements = { {{.Cluster}} . tcp . 7000 : goto service-pod, {{.Headless}} . tcp . 7000 : goto service-node }
	}
	map service-nodeports {
		type inet_proto . inet_service : verdict
		elements = { tcp . 7004 : goto external-pod, tcp . 7005 : goto external-pod }
	}
	set cluster-ips {
		type {{if .V6}}ipv6_addr{{else}}ipv4_addr{{end}}
		elements = { {{.Cluster}}, {{.Headless}} }
	}
	chain mark-for-masquerade {
		meta mark set meta mark or 0x4000
	}
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade fully-random
	}
	chain services {
		{{.IP}} daddr . meta l4proto . th dport vmap @service-ips
		fib daddr type local meta l4proto . th dport vmap @service-nodeports
	}
	chain cluster-ips-check {
		{{.IP}} daddr @cluster-ips reject
	}
	chain service-pod {
		{{.IP}} daddr {{.Cluster}} tcp dport 7000 {{.IP}} saddr != {{.PodNet}} jump mark-for-masquerade
		numgen random mod 1 vmap { 0 : goto endpoint-pod }
	}
	chain service-node {
		{{.IP}} daddr {{.Headless}} tcp dport 7000 {{.IP}} saddr != {{.PodNet}} jump mark-for-masquerade
		numgen random mod 1 vmap { 0 : goto endpoint-node }
	}
	chain external-pod {
		jump mark-for-masquerade
		goto service-pod
	}
	chain endpoint-pod {
		{{.IP}} saddr {{.Pod}} jump mark-for-masquerade
		meta l4proto tcp dnat to {{.Dest .Pod 7000}}
	}
	chain endpoint-node {
		{{.IP}} saddr {{.Server}} jump mark-for-masquerade
		meta l4proto tcp dnat to {{.Dest .Server 7001}}
	}
	chain filter-forward {
		type filter hook forward priority filter; policy accept;
		ct state new jump cluster-ips-check
	}
	chain filter-output {
		type filter hook output priority filter; policy accept;
		ct state new jump cluster-ips-check
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump services
	}
	chain nat-output {
		type nat hook output priority -100; policy accept;
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		jump masquerading
	}
}`
