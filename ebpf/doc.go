// Package ebpf is the kernel side of smcgw: it offers, recognises and steers
// TCP connections with eBPF programs, and owns the two TUN devices through
// which user space takes part.
//
// A connection that stays native costs a look at its ports and never wakes the gateway. Every decision that must hold
// while the gateway is dead (heartbeat, released SYNs, retransmissions) is made in the kernel. The package does not
// negotiate, speak TCP or move bytes; gateway does, using the states and events of this package (docs/ARCHITECTURE.md
// "Steering").
//
// A [Datapath] belongs to the network namespace of the thread that called [Open], and everything it has attached lives
// exactly as long as its file descriptors. Keep it reachable, and keep its descriptors below those of all gateway
// sockets: at exit the kernel closes the highest descriptor first, and a reset that leaves after its link is gone never
// reaches the application.
package ebpf

//go:generate go tool bpf2go -target bpfel -go-package ebpf -type event -type flow_key -type flow -type cas_args -type control -type peer_key -type peer -type device -type own -type policy_head -type dgram -type dgram_peer -type stat smcgw bpf/smcgw.bpf.c -- -O2 -g -mcpu=v3 -Wall -Werror -nostdinc -Ibpf -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
