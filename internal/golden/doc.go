// Package golden has the byte vectors of the protocol, so that every package compares its code with the same bytes. It
// also compares texts with golden files, and generated documents with their committed text; -update writes those. A
// fuzz test of any parser compares what is read with what is read once more (see [RoundTrip]). The package is for tests
// only and generates no bytes of its own.
//
// A vector is a file in testdata, named in docs/PROTOCOL.md "Vectors": bytes in hex, then a semicolon and what they
// are. A vector whose name no test asks for is compared with nothing; count them where that matters.
package golden
