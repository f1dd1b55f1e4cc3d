package sysfs

import (
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"
)

// verbsDir is where the kernel lists the device nodes of adapters, below /sys.
const verbsDir = "class/infiniband_verbs"

// Node is a device node.
type Node struct {
	Path string `json:"path"`
	// Problem is why this process cannot open it.
	Problem string `json:"problem,omitempty"`
}

// verbsNodes maps the names of adapters to the names of their nodes.
func verbsNodes(sys fs.FS) map[string]string {
	nodes := map[string]string{}
	entries, _ := fs.ReadDir(sys, verbsDir)
	for _, e := range entries {
		if name, ok := text(sys, path.Join(verbsDir, e.Name()), "ibdev"); ok && name != "" {
			nodes[name] = e.Name()
		}
	}
	return nodes
}

// access asks the kernel whether this process could open a device for reading and writing. The kernel answers EPERM for
// the device controller of a control group, and EACCES for the permissions of the file. It passes no flags: with flags
// x/sys would take EPERM for a kernel without the call, and check only permissions.
func access(name string) error {
	const noFlags = 0
	return unix.Faccessat(unix.AT_FDCWD, name, unix.R_OK|unix.W_OK, noFlags)
}

// problem describes an answer of access.
func problem(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.ENOENT):
		return "no such file: a container has to be given the device"
	case errors.Is(err, unix.EPERM):
		return "refused by the device controller of a control group: DeviceAllow=char-infiniband_verbs rw, or the container's devices"
	case errors.Is(err, unix.EACCES):
		return "no permission to read and write it"
	default:
		return err.Error()
	}
}
