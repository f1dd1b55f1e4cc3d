// Package policy compiles a list of rules into the masks that the programs intersect, and decides from the same masks.
//
// So the programs' decisions can be predicted and tested without them. The package writes no map.
//
// A lookup without a hit means "every rule that names no such key", so each entry must include those rules, too.
package policy
