// Package adopt has programs start with libsmcgw.so: one by its environment, those of a unit
// of systemd by a drop-in, or all of a host by /etc/ld.so.preload.
//
// It writes to places of others, so it writes little: one drop-in with a name of its own,
// and one line. Each is written whole or not at all, enabling twice changes nothing, and
// disabling leaves what others have written as it was.
//
// A program that cannot load the library does not fail. It runs natively, so its starter
// must say so.
//
// The trap: a library that the loader cannot load makes every program of the host complain,
// and if it misbehaves no program may be left that could remove it. [Installation.EnableHost]
// therefore tries the library first, wants it writable by root only, and refuses a host with
// programs that the library is not made for.
package adopt
