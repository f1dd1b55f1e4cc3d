package guest

import "fmt"

// Series is a kernel series in Debian 12's archive, backports included.
type Series string

// The series: the default, and the one Debian 12 was released with.
const (
	Linux612 Series = "6.12"
	Linux61  Series = "6.1"
)

// metaPackage returns the package that depends on the image of the newest kernel of the series.
func (s Series) metaPackage() (string, error) {
	switch s {
	case Linux612:
		return "linux-image-6.12-amd64", nil
	case Linux61:
		return "linux-image-amd64", nil
	}
	return "", fmt.Errorf("kernel series %q unknown", s)
}

// packages make up the guest's userland, together with their dependencies.
var packages = []string{
	"rdmacm-utils", "ibverbs-utils", "ibverbs-providers", "librdmacm1", "perftest",
	"iproute2", "dash", "busybox-static", "coreutils",
	"nftables", "iptables", "ipvsadm", "wireguard-tools",
	"redis-server", "redis-tools", "iperf3", "nginx", "apache2-utils", "libcap2-bin",
}

// modules are loaded at boot, in this order, each after its dependencies. The guest has no modprobe, so what the
// kernel would request by alias is here by name: crc32_generic is the ICRC of rxe in older series, and without tcp_diag
// no gateway knows which sockets linger, so that a drain takes all of its time.
var modules = []string{
	"virtio_pci", "virtio_net", "virtio_rng", "tun", "veth", "tcp_diag",
	"crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe",
}

// hostModules are loaded after the others if [Config.Hosts] says so: devices,
// packet filters and balancers.
var hostModules = []string{
	"crc32c_generic", "bridge", "macvlan", "ipvlan", "8021q", "bonding", "vrf", "wireguard", "ipip", "ip6_tunnel", "ip_gre", "sit", "vxlan", "dummy",
	"sch_ingress", "cls_bpf",
	"nf_tables", "nft_ct", "nft_nat", "nft_masq", "nft_redir", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6", "nft_fib_inet", "nft_chain_nat", "nft_compat",
	"nft_numgen", "nft_limit", "nft_log", "xt_conntrack", "xt_addrtype", "xt_mark", "xt_connmark", "xt_multiport", "xt_owner",
	"xt_nat", "xt_MASQUERADE", "xt_REDIRECT", "xt_TPROXY", "xt_socket", "xt_tcpudp", "xt_comment", "xt_ipvs",
	"ip_vs", "ip_vs_rr",
}

// unwanted are parts of the packages that the guest does not need.
var unwanted = []string{
	"usr/share/", "usr/lib/systemd/", "lib/systemd/", "lib/udev/", "usr/lib/udev/", "var/", "usr/include/",
	"usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/libperl", "usr/bin/perl",
	"usr/lib/x86_64-linux-gnu/gconv/", "lib/x86_64-linux-gnu/security/", "usr/bin/dpkg", "usr/sbin/pam",
	"etc/init.d/", "etc/systemd/", "etc/modprobe.d/", "etc/udev/",
}

// applets are the programs for which the guest uses busybox unless a package has brought them.
var applets = []string{"dmesg", "free", "grep", "kill", "killall", "mount", "nc", "ping", "ps", "sed", "top", "wget"}
