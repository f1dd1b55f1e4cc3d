// Package witness tells what only the kernel knows of the TCP connections of a cgroup: which of them its programs begin
// ([Witness]), and the initial sequence numbers of one, long after it began ([Sequences]). No address translation changes
// these, so they name a connection at both of its ends.
//
// Its programs are attached to that cgroup only, and change nothing. That of the sequence numbers answers a private
// option of getsockopt(2) under the lock of the socket. It touches no connections or packets, and is attached only around
// questions.
package witness
