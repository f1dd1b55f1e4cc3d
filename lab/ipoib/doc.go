// Package ipoib joins two hosts of [testnet] by devices that are to programs what those of
// IPoIB are, on a machine without an InfiniBand adapter.
//
// A device is a TUN of type ARPHRD_INFINIBAND. What the kernel redirects to it is
// treated as on IPoIB, which goes by the type (dev_is_mac_header_xmit). The link header of
// [HeaderLen] bytes comes from two small programs, which are the first on the device:
//
//	egress   puts it in front of what the host sends, as ipoib_hard_header does
//	ingress  puts one of zeros in front of what arrives, as skb_add_pseudo_hdr does,
//	         but not of what a program redirects there: that has an Ethernet header
//
// The other host's device gets the packets without it.
package ipoib
