// Package farpeer is what a carrier over a network knows of one peer: whether its path was
// proved, how long a packet the path takes, and whether the peer's gateway lives.
//
// It exists because none of that is of one device: soft and adapters ask the same. It knows
// no queue pair; a link is what its wire leg can be asked ([Leg]).
package farpeer
