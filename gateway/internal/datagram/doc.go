// Package datagram is about the datagrams of unmodified UDP programs: what the engine
// that carries them needs of the gateway it is a part of. The trap: the engine calls the
// gateway and the steering on its shard, and they must not wait.
package datagram
