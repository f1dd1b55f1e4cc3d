// Package wire is RoCEv2 as bytes: the base transport header of InfiniBand, the
// extension headers of RC, UC and UD, and the invariant CRC that ends every
// datagram. It exists apart from the queue pairs so that what a peer may send
// can be tested, and fuzzed, without one. It has no state, does no I/O and
// allocates nothing; all integers of headers are big-endian on the wire, the
// ICRC alone is little-endian.
//
// What is verified on receipt, and what is not:
//
//   - Header.Parse checks that the datagram holds all headers of its opcode, the
//     padding and the ICRC; that the transport version is 0; and that the opcode
//     is one of this package's. It ignores reserved bits. It does not compare
//     anything with a queue pair: partition key, queue pair number, PSN, Q_Key,
//     sizes against the MTU are for the caller, and so is the ICRC.
//   - ICRC.Verify checks the ICRC against the addresses and ports of the flow. On
//     IPv6 that is the whole check: 32 bits over everything the ICRC covers. On
//     IPv4 the ICRC covers the identification too, which a UDP socket does not
//     tell. Verify accepts if some identification explains the ICRC. That leaves
//     16 bits of check: a datagram damaged at random passes with a probability of
//     2^-16. It also reports the identification, for callers that know better.
//   - Traffic class, time to live, checksums and the congestion bits of the BTH
//     change on the way and are covered by no check.
//
// The trap: the ICRC assumes an IPv4 header of 20 bytes with only DF set, and no
// extension headers of IPv6. What is sent otherwise (options, fragments) does not
// verify at any peer.
package wire
