// Package upgrade is how one gateway follows another on a host: the successor's way
// through a takeover ([Predecessor]), and the end of a gateway whose connections are
// served to their end ([Drainer]). The server's end of a takeover is in package admin;
// what a gateway gives up and takes back is its own. The trap: until a takeover has
// come to its end the old gateway takes everything back, so nothing of it may be
// changed from here.
package upgrade
