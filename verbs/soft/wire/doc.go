// Package wire encodes and parses RoCEv2: the base transport header of InfiniBand, the extension headers of RC, UC and
// UD, and the invariant CRC that ends every datagram. It is separate from the queue pairs so that what a peer may send
// can be tested and fuzzed without one. It has no state, does no I/O and does not allocate. All integers of headers are
// big-endian on the wire; only the ICRC is little-endian.
//
// What is verified on receipt, and what is not:
//
//   - Header.Parse checks that the datagram has all headers of its opcode, the padding and the ICRC; that the transport
//     version is 0; and that the opcode is one of this package's. It ignores reserved bits. It compares nothing with a
//     queue pair: the caller must check partition key, queue pair number, PSN, Q_Key, sizes against the MTU, and the
//     ICRC.
//   - ICRC.Verify checks the ICRC against the addresses and ports of the flow. On IPv6 that is the whole check: 32 bits
//     over everything the ICRC covers. On IPv4 the ICRC also covers the identification, which a UDP socket does not
//     report. Verify accepts the datagram if some identification explains the ICRC. That leaves 16 bits of check: a
//     randomly damaged datagram passes with a probability of 2^-16. It also returns the identification, for callers
//     that know what it should be.
//   - Traffic class, time to live, checksums and the congestion bits of the BTH change in transit and are not covered
//     by any check.
//
// The trap: the ICRC assumes an IPv4 header of 20 bytes with only DF set, and no IPv6 extension headers. Datagrams sent
// otherwise (options, fragments) do not verify at any peer.
package wire
