package wire

import "golang.org/x/sys/cpu"

// canFold tells whether the processor multiplies 64 bytes at once.
var canFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE41

// fold is the register of the CRC, which is the complement of a state, after p:
// at least foldMin bytes, and a multiple of 16.
//
//go:noescape
func fold(register uint32, p []byte, k *folding) uint32

// foldCopy is fold of a multiple of 256 bytes, which are copied to the beginning
// of to on the way.
//
//go:noescape
func foldCopy(register uint32, to, p []byte, k *folding) uint32
