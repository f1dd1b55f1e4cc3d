// Package sequence tells the initial sequence numbers of a TCP connection, long after it began: no address translation
// changes them, so they name a connection at both of its ends. Its program answers a private option of getsockopt(2)
// under the lock of the socket. It is not in the way of connections and
// their packets, and is attached only around questions.
package sequence
