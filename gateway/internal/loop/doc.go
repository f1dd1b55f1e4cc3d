// Package loop runs one locked thread with its epoll, timers and devices: a [Shard]. What moves bytes on it is a
// [Member]: the owner of a descriptor and a queue pair. A shard spins before it sleeps, keeps off the processors of
// applications, and survives a panic in the work for one owner (docs/ARCHITECTURE.md "Shards"). It knows nothing of
// connections, peers or carriers. The trap: everything on a shard is called on its thread and must not block; other
// goroutines reach it only through [Shard.Post], and slow work goes to a [Reaper].
package loop
