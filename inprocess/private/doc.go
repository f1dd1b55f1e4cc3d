// Package private is the broker of a user who has no daemon: where its socket is, who starts it, when it ends. It
// lives in a directory of that user alone, and ends soon after its last client.
//
// One lock (a file in the directory) orders starting, joining and ending: a broker that is connected to under the
// lock goes on serving. The trap: a library connects without the lock. It may find a broker that is about to end,
// and is native then; Join keeps one going for as long as its counter is open.
package private
