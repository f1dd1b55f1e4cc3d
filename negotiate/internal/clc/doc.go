// Package clc is what the messages of the handshake and those of the resolution have in common: the header, TLVs, the
// sender's identity. docs/PROTOCOL.md "CLC messages" is the normative text of the bytes.
//
// It exists so that negotiate and negotiate/resolve speak one language without one being inside the other; nothing else
// can import it. It judges lengths, order and repetition, not what a message means.
//
// The trap: values that WalkTLVs hands out alias the message.
package clc
