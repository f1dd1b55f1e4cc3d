// Package golden has the byte vectors of the protocol, so that every package compares its code with the same bytes, and
// compares texts with golden files and generated documents with their committed text; -update writes those. It serves
// tests only and makes no bytes of its own.
//
// A vector is a file of testdata, named in docs/PROTOCOL.md "Vectors": bytes in hex, then a semicolon and what they are. The
// trap: a vector whose name no test asks for is compared with nothing; count them where that matters.
package golden
