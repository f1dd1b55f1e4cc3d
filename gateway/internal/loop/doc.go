// Package loop is one locked thread with its epoll, timers and devices: a [Shard].
// What it moves is a [Member]: the owner of a descriptor and a queue pair. It spins
// before it sleeps, keeps off the processors of applications, and goes on after a
// panic in the work for one owner (docs/ARCHITECTURE.md "Shards"). It knows nothing
// of connections, peers or carriers. The trap: everything on a shard is called on its
// thread and must not wait; other goroutines reach it only through [Shard.Post], and
// what takes long goes to a [Reaper].
package loop
