package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// ownDevice is the prefix of the names of devices that only a gateway has.
const ownDevice = "smcgw-"

// space is a network namespace.
type space struct {
	// admin holds the sockets that listen like an admin socket.
	admin adminSockets
	// pids are its processes, if a gateway may be among them (has).
	pids []int
	has  bool
}

// listSpaces lists the network namespaces of the processes that the caller may inspect.
func listSpaces() (map[string]*space, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	spaces := map[string]*space{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ns, err := os.Readlink(process.File(pid, "ns/net"))
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		s, seen := spaces[ns]
		if !seen {
			if s, err = spaceOf(pid); err != nil {
				continue
			}
			spaces[ns] = s
		}
		if s.has {
			s.pids = append(s.pids, pid)
		}
	}
	return spaces, nil
}

// spaceOf looks for traces of gateways in the namespace of a process.
func spaceOf(pid int) (*space, error) {
	devices, errDevices := os.ReadFile(process.File(pid, "net/dev"))
	sockets, errSockets := os.ReadFile(process.File(pid, "net/unix"))
	if err := errors.Join(errDevices, errSockets); err != nil {
		return nil, err
	}
	s := &space{admin: listening(sockets)}
	s.has = len(s.admin) > 0
	for line := range bytes.Lines(devices) {
		s.has = s.has || bytes.HasPrefix(bytes.TrimSpace(line), []byte(ownDevice))
	}
	return s, nil
}

// adminSockets maps the inodes of admin sockets to their paths.
type adminSockets map[string]string

// listening parses a table of sockets. A gateway binds its admin socket under a temporary
// name beside its path, and the table has the name that was bound.
func listening(table []byte) adminSockets {
	found := adminSockets{}
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(line)
		if len(f) < 8 || f[3] != acceptsConnections || f[4] != isStream || !strings.HasPrefix(f[7], "/") {
			continue
		}
		bound := strings.TrimSuffix(line[strings.IndexByte(line, '/'):], "\n")
		if place, ok := strings.CutSuffix(bound, config.NewSuffix); ok {
			found[f[6]] = place
		}
	}
	return found
}

// The fields of a listening socket in the table: __SO_ACCEPTCON and SOCK_STREAM.
const (
	acceptsConnections = "00010000"
	isStream           = "0001"
)
