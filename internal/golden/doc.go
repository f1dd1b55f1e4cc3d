// Package golden reads the byte vectors of the normative text, so that every package compares its code with the same
// bytes. It serves tests only and makes no bytes of its own.
//
// A vector of docs/PROTOCOL.md is a block behind its name in backquotes: bytes in hex, then a semicolon and what they
// are. The trap: a vector whose name no test asks for is compared with nothing; count them where that matters.
package golden
