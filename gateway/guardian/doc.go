// Package guardian splits a gateway into two processes, so that a daemon that dies or hangs
// hurts no application. The guardian holds the descriptors of the steering, watches the
// daemon's heartbeat, and keeps the steering for a moment longer than the daemon's sockets
// (docs/ARCHITECTURE.md "When the gateway dies"). A guardian that dies is replaced. It does
// not restart a daemon. The trap: [Supervise] starts the program again, so nothing may be
// opened before it.
package guardian
