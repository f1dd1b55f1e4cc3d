package wire

import "golang.org/x/sys/cpu"

// canFold reports whether the processor can multiply 64 bytes at once.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41

// fold returns the CRC register, which is the complement of a state, after p, whose length must be at least foldMin and
// a multiple of 16.
//
//go:noescape
func fold(register uint32, p []byte, k *folding) uint32

// foldCopy is fold for a multiple of 256 bytes, which it also copies to the beginning of to.
//
//go:noescape
func foldCopy(register uint32, to, p []byte, k *folding) uint32
