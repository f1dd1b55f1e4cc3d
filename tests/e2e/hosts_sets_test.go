package e2e

// sets are firewalls that look up sources in sets, as fail2ban fills them: the client's second address is banned.
func sets() []hostKind {
	targets := []target{
		{name: "good", port: openPort, bind: "{{.Client}}", want: "app at {{.Dest .Server 7000}} saw client"},
		{name: "banned", port: openPort, bind: "{{.Alias}}", want: "connect: ECONNREFUSED"},
		{name: "good again", port: openPort, bind: "{{.Client}}", want: "app at {{.Dest .Server 7000}} saw client"},
	}
	return []hostKind{
		{name: "fail2bannft", sides: []string{serverSide}, build: func(c *hostCell) []target {
			c.serves(c.h2, "app", openPort)
			c.nft(c.h2, fail2banRules)
			return targets
		}},
		{name: "fail2banipset", needs: []string{"ipset", "iptables-nft-restore"}, sides: []string{serverSide}, build: func(c *hostCell) []target {
			c.serves(c.h2, "app", openPort)
			c.each(c.h2, "ipset create f2b{{.Bits}} hash:ip timeout 600 family {{if .V6}}inet6{{else}}inet{{end}}")
			c.each(c.h2, "ipset add f2b{{.Bits}} {{.Alias}}")
			c.restore(c.h2, "nft", `*filter
-A INPUT -p tcp -m multiport --dports 7000,7009 -m set --match-set f2b{{.Bits}} src -j REJECT --reject-with {{.Unreachable}}
COMMIT
`)
			return targets
		}},
	}
}

// fail2banRules are from fail2ban's action nftables-multiport.
const fail2banRules = `table {{.NFT}} f2b-table {
	set addr-set-app {
		type {{if .V6}}ipv6_addr{{else}}ipv4_addr{{end}}
		elements = { {{.Alias}} }
	}
	chain f2b-chain {
		type filter hook input priority filter - 1; policy accept;
		tcp dport { 7000, 7009 } {{.IP}} saddr @addr-set-app reject with {{.ICMP}} type port-unreachable
	}
}`
