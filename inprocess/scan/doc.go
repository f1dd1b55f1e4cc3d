// Package scan tells what kind of program a file is ([Inspect]): which libc it has, and why libsmcgw.so cannot be loaded
// into it. It also tells whether a program could read or write a socket bypassing libc ([Scanner]).
//
// A promoted connection has bytes of ours, tokens, in its kernel socket. A program whose
// calls all go through libc never sees them, because libsmcgw.so stands between. A program
// that makes system calls by itself would, so its connections stay native. What a program
// can do shows in its executable memory, outside of libc, the loader and the kernel's own
// pages: the package finds the instructions that enter the kernel, and the number of the
// call where it is a constant set just before. One that cannot touch a socket (getrandom,
// futex) is harmless; one that is not known counts.
//
// [Scanner.Program] looks at a file and the libraries that it names, [Scanner.Process] at
// what a process has mapped. Results of files are kept by device, inode, size and times, in
// a bounded cache. A build id would be no key: anyone can write one into a file, and what is
// found in it would then be believed of another's program.
//
// The trap: the bytes of an instruction need not be one. Those of "syscall" occur within
// displacements and constants, so on x86-64 the function around each is decoded from its
// beginning, which the unwind tables tell. arm64 has no such doubt.
package scan
