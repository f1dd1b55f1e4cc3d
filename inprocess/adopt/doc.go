// Package adopt has programs start with libsmcgw.so: one by its environment, those of a unit
// of systemd by a drop-in, or all of a host by /etc/ld.so.preload.
//
// It writes files of others, so it writes few of them: one drop-in with a name of its own,
// and one line. Each is written whole or not at all, asking twice changes nothing, and what
// is undone leaves what others have written as it was.
//
// A program that cannot load the library does not fail. It runs natively, so whoever starts it
// must say so.
//
// The trap: a library that the loader cannot load makes every program of the host complain,
// and one that misbehaves there cannot be removed by a program. [Installation.EnableHost] therefore
// tries the library first, wants it out of reach of others than root, and refuses a host
// with programs that the library is not made for.
package adopt
