// Package packet parses and edits the headers of IP, TCP and UDP, and the TCP option of smcgw.
//
// It is the only such code of the module. Every package may import it, and it imports no other package of the module. A
// header is a view of the bytes in which it was found (IP, TCP, UDP). Getters and setters convert from and to network
// byte order, which is big-endian. Segment and Header build packets.
//
// Nothing here allocates, does I/O, or keeps a reference to its arguments beyond the life of its result.
//
// Setters do not update checksums. Call SetTCPChecksum after them, or change the header through an Editor, which
// updates the checksum incrementally (RFC 1624).
package packet
