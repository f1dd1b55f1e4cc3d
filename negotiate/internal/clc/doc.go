// Package clc is what all CLC messages have in common: the header, the TLVs and the sender's identity. docs/PROTOCOL.md
// "CLC messages" is the normative text of the bytes.
//
// It lets negotiate and the packages below it share one format without depending on each other; nothing else can import
// it. It checks lengths, order and repetition, but not what a message means.
//
// Beware of aliasing: the values that WalkTLVs passes on alias the message.
package clc
