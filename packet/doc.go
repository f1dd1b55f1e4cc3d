// Package packet reads and edits the headers of IP, TCP and UDP, and the TCP option of smcgw.
//
// It is the only such code of the module: every package may import it, and it imports none of ours. A header is a view
// of the bytes it was found in (IP, TCP, UDP); getters and setters convert from and to network byte order, which is
// big-endian. Segment and Header make packets.
//
// Nothing here allocates, keeps a reference to the bytes it was given longer than its result lives, or does I/O.
//
// The trap: setters leave checksums alone. Call SetTCPChecksum after them, or change the header through an Editor,
// which carries the checksum along (RFC 1624).
package packet
