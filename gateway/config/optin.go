package config

import "errors"

// OptIn has the TCP connections of one cgroup, and of those below it, carried where they
// can be, whatever the rules say, for as long as its request is held open. The never-list,
// the mode, the kill switch and the limits count as ever.
type OptIn struct {
	// Cgroup is the path below the mount of cgroup2.
	Cgroup string `json:"cgroup"`
	// ID is the number of the cgroup, by which the gateway knows that it sees the same.
	ID uint64 `json:"id"`
}

// ErrOptIn says why a cgroup cannot be opted in.
var ErrOptIn = errors.New("opt-in")
