// Package claim decides which process may change what a gateway is, one at a time: a
// successor that takes over, or the daemon itself, which puts another gateway in its place
// ([Claims]). The trap: what is done under a claim may take seconds, and [Claims.Busy]
// answers meanwhile.
package claim
