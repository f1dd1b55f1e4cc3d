package profile

import "slices"

// Role is the part that a process has in a work.
type Role string

// The roles.
const (
	Client        Role = "client"           // the program that begins
	ClientGateway Role = "client's gateway" // the daemon beside it, and its guardian
	ServerGateway Role = "server's gateway"
	Server        Role = "server"  // the program that answers
	Kernel        Role = "kernel"  // its threads, and interrupts while nothing ran
	Others        Role = "machine" // whatever else runs on the machine
)

// Roles lists them in the order in which a byte passes them.
var Roles = []Role{Client, ClientGateway, ServerGateway, Server, Kernel, Others}

// thread is the function that every thread of the kernel is within.
const thread = "kthread"

// RoleOf finds the role of a sample's process; known are those of processes, by
// process ID.
func RoleOf(s *Sample, known map[int]Role) Role {
	if r, ok := known[s.PID]; ok {
		return r
	}
	if s.PID == 0 || slices.ContainsFunc(s.Stack, func(f Frame) bool { return f.Symbol == thread }) {
		return Kernel
	}
	return Others
}

// gateway tells whether it is one of ours.
func (r Role) gateway() bool { return r == ClientGateway || r == ServerGateway }

// program tells whether it is one of those that the work is about.
func (r Role) program() bool { return r == Client || r == Server }
