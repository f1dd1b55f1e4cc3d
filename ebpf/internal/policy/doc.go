// Package policy compiles a list of rules into the masks that the programs intersect,
// and decides from the same masks.
//
// It exists so that what the programs decide can be told, and tested, without them.
// It writes no map.
//
// The trap: a lookup that misses means "every rule that names no such key", so each
// entry stands for those, too.
package policy
