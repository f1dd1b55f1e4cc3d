package testnet

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// PathMTU drops packets that are longer than the MTU of a link on the path. It never fragments.
type PathMTU struct {
	// Bytes is the size of the longest IP packet that passes; 0 means any.
	Bytes int
	// Silent makes the link a black hole. Otherwise the sender gets an ICMP error from the address of the router.
	Silent bool
}

// icmpQuote is how much of a packet an ICMP error quotes.
const icmpQuote = 512

// drops reports whether a frame is dropped, and returns the frame that tells the sender, unless Silent is set.
func (p PathMTU) drops(frame []byte, router4, router6 netip.Addr) (answer []byte, dropped bool) {
	v, ok := viewPacket(frame)
	if p.Bytes == 0 || !ok || v.last-v.ip <= p.Bytes {
		return nil, false
	}
	if p.Silent {
		return nil, true
	}
	return v.tooBig(p.Bytes, router4, router6), true
}

// tooBig returns the ICMP error about a packet, addressed to its sender.
func (v packetView) tooBig(mtu int, router4, router6 netip.Addr) []byte {
	quote := v.frame[v.ip:min(v.last, v.ip+icmpQuote)]
	out := make([]byte, vnetHeaderLen, vnetHeaderLen+14+40+8+len(quote))
	out = append(out, v.frame[vnetHeaderLen+6:vnetHeaderLen+12]...)
	out = append(out, portMAC(routerNumber)...)
	out = append(out, v.frame[vnetHeaderLen+12:v.ip]...)
	icmp := append(make([]byte, 8, 8+len(quote)), quote...)
	binary.BigEndian.PutUint32(icmp[4:], uint32(mtu)) // 16 bits of IPv4, below zeros
	h := packet.Header{Src: router4, Proto: unix.IPPROTO_ICMP, TTL: 64}
	src, _ := v.addresses()
	h.Dst, _ = netip.AddrFromSlice(src)
	icmp[0], icmp[1] = 3, 4
	if v.v6 {
		h.Src, h.Proto = router6, packet.ProtoICMPv6
		icmp[0], icmp[1] = 2, 0
	}
	ip := make([]byte, h.Len())
	h.Put(ip, len(icmp))
	pseudo := uint16(0)
	if v.v6 {
		pseudo = packet.PseudoSum(ip, h.Proto, len(icmp))
	}
	binary.BigEndian.PutUint16(icmp[2:], ^packet.Sum(icmp, pseudo))
	return append(append(out, ip...), icmp...)
}

// backTo swaps a frame's Ethernet addresses.
func backTo(frame []byte) {
	eth := frame[vnetHeaderLen:]
	dst := append(net.HardwareAddr(nil), eth[:6]...)
	copy(eth[:6], eth[6:12])
	copy(eth[6:12], dst)
}
