// Package adopt makes programs start with libsmcgw.so: one program by its environment, those of a systemd unit by a
// drop-in, or all of a host by /etc/ld.so.preload.
//
// It writes to places that belong to others, so it writes little: one drop-in under a name of its own, and one line.
// Each is written whole or not at all, enabling twice changes nothing, and disabling keeps what others have written.
//
// A program that cannot load the library does not fail: it runs natively, so its starter must say so.
//
// The trap: if the loader cannot load the library, every program of the host complains, and if the library misbehaves,
// no program may be left that could remove it. [Installation.EnableHost] therefore tries the library first, requires
// that only root can write it, and refuses a host with programs that the library is not built for.
package adopt
