// Package witness finds out what only the kernel knows about the TCP connections of a cgroup: which of them its
// programs initiate ([Witness]), and the initial sequence numbers of a connection long after it began ([Sequences]).
// Address translation does not change these numbers, so they identify a connection at both of its ends.
//
// Its programs are attached only to that cgroup and change nothing. The program of [Sequences] answers a private option
// of getsockopt(2) under the lock of the socket. It touches neither connections nor packets, and is attached only
// around questions.
package witness
