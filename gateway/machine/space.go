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

// ownDevice begins the names of the devices that only a gateway has.
const ownDevice = "smcgw-"

// space is a network namespace.
type space struct {
	// admin has the sockets that listen as an admin socket does.
	admin adminSockets
	// pids are its processes, if there is a gateway among them.
	pids []int
	has  bool
}

// listSpaces lists the network namespaces of the processes that the caller may look into.
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
			continue // it has ended, or is another user's
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

// spaceOf looks for what gateways have in the namespace of a process.
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

// adminSockets has the places of admin sockets by their inodes.
type adminSockets map[string]string

// listening reads a table of sockets. A gateway binds its admin socket beside the place of
// that, and the table has the name that was bound.
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

// What the table says of a socket that listens: __SO_ACCEPTCON and SOCK_STREAM.
const (
	acceptsConnections = "00010000"
	isStream           = "0001"
)
