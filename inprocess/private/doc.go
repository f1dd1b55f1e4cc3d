// Package private runs the broker of a user without a daemon: where its socket is, who starts it, and when it ends. The
// broker lives in a directory of that user alone, and ends soon after its last client.
//
// One lock (a file in the directory) orders starting, joining and ending: a broker that is joined under the lock goes
// on serving. The trap: a library connects without the lock. If it finds a broker that is about to end, it stays
// native; Join keeps a broker running for as long as its counter is open.
package private
