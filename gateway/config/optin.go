package config

import "errors"

// OptIn requests that the TCP connections of a cgroup, and of those below it, be carried if
// possible, whatever the rules say, for as long as the request is held open. The never-list,
// the mode, the kill switch and the limits still apply.
type OptIn struct {
	// Cgroup is the path below the cgroup2 mount.
	Cgroup string `json:"cgroup"`
	// ID is the cgroup's number, by which the gateway verifies that it sees the same one.
	ID uint64 `json:"id"`
}

// ErrOptIn means that a cgroup cannot be opted in.
var ErrOptIn = errors.New("opt-in")
