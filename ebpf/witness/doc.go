// Package witness tells of the TCP connections of a cgroup what only the kernel knows: which of them its programs begin
// ([Witness]), and the initial sequence numbers of one, long after it began ([Sequences]): no address translation changes
// them, so they name a connection at both of its ends.
//
// Its programs are attached to that cgroup only, read, and change nothing. That of the sequence numbers answers a private
// option of getsockopt(2) under the lock of the socket. It is not in the way of connections and their packets, and is
// attached only around questions.
package witness
