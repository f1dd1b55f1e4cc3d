// Package witness tells which TCP connections the programs of a cgroup begin. Its program
// is attached to that cgroup only, reads, and changes nothing.
package witness
