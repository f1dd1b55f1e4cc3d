// Package scan examines programs. [Inspect] tells which libc a program uses, and why libsmcgw.so cannot be loaded into
// it. [Scanner] tells whether a program could read or write a socket without libc.
//
// The kernel socket of a promoted connection carries bytes of ours, tokens. A program whose calls all
// go through libc never sees them, because libsmcgw.so is in between. A program that makes system
// calls itself would see them, so its connections stay native. What a program can do shows in its
// executable memory outside of libc, the loader and the kernel's own pages: the package finds the
// instructions that enter the kernel, and the number of the system call if it is a constant set just
// before. A call that cannot touch a socket (getrandom, futex) is harmless; an unknown one counts.
//
// [Scanner.Program] examines a file and the libraries that it names, [Scanner.Process] what a process has mapped.
// Results are cached by device, inode, size and times of the file, up to a bound. A build ID would not do as a key:
// anyone can write one into a file, and the result for that file would then be believed of another program. What was
// read from a process's memory is believed of that process alone.
//
// The trap: the bytes of an instruction need not be one. Those of SYSCALL also occur within displacements and
// constants, so on x86-64 the function around each is decoded from its beginning, which the unwind tables give. On
// arm64 there is no such ambiguity.
package scan
