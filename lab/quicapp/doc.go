// Package quicapp has a QUIC server and client for hosts of a test network. Both are ordinary programs on
// golang.org/x/net/quic.
//
// Most of today's datagrams are QUIC: there are many, nearly as large as a packet, with loss recovery, congestion
// control and authentication of their own, so that a datagram that is changed or duplicated on its way is noticed. It
// is not part of package apps because that is linked into smcgw for its demonstration. A test binary passes [Apps] to
// apps.Init.
//
// QUIC repairs what a gateway breaks. That every byte arrives proves little; look at the time it takes, and at the
// gateway's counters.
package quicapp
