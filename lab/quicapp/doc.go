// Package quicapp is a server and a client of QUIC for hosts of a test network,
// ordinary ones of golang.org/x/net/quic.
//
// It exists because QUIC is what most datagrams of today are: many, of nearly
// the size of a packet, with their own loss recovery, congestion control and
// authentication, so that a datagram changed or doubled on its way is noticed.
// It is no part of package apps because that is linked into smcgw for its
// demonstration. A test binary passes [Apps] to apps.Init.
//
// The trap: QUIC repairs what a gateway breaks. That every byte arrives says
// little; its time and the counters of the gateway do.
package quicapp
