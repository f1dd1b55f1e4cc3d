package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// Found is a gateway of this machine, whatever its configuration.
type Found struct {
	// PID is the daemon, or another process of the gateway where that is not known.
	PID int
	// Namespace names the network namespace of the gateway; Here: it is the caller's.
	Namespace string
	Here      bool
	// Path is the admin socket as the daemon sees it, Socket how the caller reaches it; empty
	// if it was not found.
	Path, Socket string
}

// String names the gateway for an operator.
func (f Found) String() string {
	s := "gateway of process " + strconv.Itoa(f.PID)
	if f.Path != "" {
		s += " at " + f.Path
	}
	if !f.Here {
		s += " in network namespace " + f.Namespace
	}
	return s
}

const (
	// searchPatience bounds a search, answerPatience the wait for one process.
	searchPatience = 5 * time.Second
	answerPatience = 2 * time.Second
)

// ownDevice begins the names of the devices that only a gateway has.
const ownDevice = "smcgw-"

// Find lists the gateways of this machine that the caller can see, those that drain
// too: by the devices that they hold, which only a privileged process can make. What they
// were configured to be does not matter. It takes root to find the sockets. One that does
// not answer keeps no other waiting.
func Find(ctx context.Context) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, searchPatience)
	defer cancel()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("own network namespace: %w", err)
	}
	spaces := map[string][]int{} // processes of namespaces that have devices of gateways
	known := map[string]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		ns, err := os.Readlink(process.File(pid, "ns/net"))
		if err != nil {
			continue // it has ended, or is another user's
		}
		has, seen := known[ns]
		if !seen {
			has = hasOwnDevice(pid)
			known[ns] = has
		}
		if has {
			spaces[ns] = append(spaces[ns], pid)
		}
	}
	var list []Found
	var mu sync.Mutex // guards list
	var asked sync.WaitGroup
	for ns, pids := range spaces {
		asked.Go(func() {
			for _, f := range findIn(ctx, pids) {
				f.Namespace, f.Here = ns, ns == own
				mu.Lock()
				list = append(list, f)
				mu.Unlock()
			}
		})
	}
	asked.Wait()
	slices.SortFunc(list, func(a, b Found) int { return a.PID - b.PID })
	return list, nil
}

// hasOwnDevice reports whether a gateway has devices in the namespace of a process.
func hasOwnDevice(pid int) bool {
	b, _ := os.ReadFile(process.File(pid, "net/dev"))
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte(ownDevice)) {
			return true
		}
	}
	return false
}

// suspect is a process that may be of a gateway.
type suspect struct {
	pid     int
	sockets map[string]bool
	found   Found
	answers bool
}

// findIn lists the gateways among the processes of a namespace in which there are any.
func findIn(ctx context.Context, pids []int) (list []Found) {
	var suspects []*suspect
	var silent []int // hold devices and have no socket that answers
	for _, pid := range pids {
		holds, sockets, err := holdsDevices(pid)
		if err != nil && !errors.Is(err, os.ErrNotExist) && looksLikeOne(pid) {
			silent = append(silent, pid)
		}
		if holds {
			suspects = append(suspects, &suspect{pid: pid, sockets: sockets})
		}
	}
	var asked sync.WaitGroup
	for _, s := range suspects {
		asked.Go(func() { s.found, s.answers = answering(ctx, s.pid, s.sockets) })
	}
	asked.Wait()
	for _, s := range suspects {
		if s.answers {
			list = append(list, s.found)
		} else {
			silent = append(silent, s.pid)
		}
	}
	guardians := map[int]bool{}
	for _, f := range list {
		guardians[process.GuardianOf(f.PID)] = true
	}
	for _, pid := range silent {
		if !guardians[pid] && !slices.Contains(silent, process.GuardianOf(pid)) { // one of each gateway
			list = append(list, Found{PID: pid})
		}
	}
	return list
}

// looksLikeOne is for processes that the caller may not look into.
func looksLikeOne(pid int) bool {
	name, _ := os.ReadFile(process.File(pid, "comm"))
	return strings.HasPrefix(strings.TrimSpace(string(name)), "smcgw")
}

// holdsDevices reports whether a process holds a device of a gateway, and which sockets
// it has, by their inodes.
func holdsDevices(pid int) (holds bool, sockets map[string]bool, err error) {
	fds, err := os.ReadDir(process.File(pid, "fd"))
	if err != nil {
		return false, nil, err
	}
	sockets = map[string]bool{}
	for _, fd := range fds {
		to, _ := os.Readlink(process.File(pid, "fd/"+fd.Name()))
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			sockets[strings.TrimSuffix(inode, "]")] = true
		}
		if to == "/dev/net/tun" && !holds {
			info, _ := os.ReadFile(process.File(pid, "fdinfo/"+fd.Name()))
			holds = bytes.Contains(info, []byte("iff:\t"+ownDevice))
		}
	}
	return holds, sockets, nil
}

// answering looks for the admin socket among the sockets of a process.
func answering(ctx context.Context, pid int, sockets map[string]bool) (Found, bool) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	table, _ := os.ReadFile(process.File(pid, "net/unix"))
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path
		f := strings.Fields(line)
		if len(f) < 8 || f[4] != "0001" || !sockets[f[6]] || !strings.HasPrefix(f[7], "/") {
			continue
		}
		bound := strings.TrimSuffix(f[7], config.NewSuffix)
		for _, path := range []string{bound, bound + config.DrainingSuffix} {
			for _, socket := range []string{path, filepath.Join(process.File(pid, "root"), path)} {
				if answers(ctx, socket, pid) {
					return Found{PID: pid, Path: path, Socket: socket}, true
				}
			}
		}
	}
	return Found{}, false
}

// answers reports whether a process answers as a gateway on a socket.
func answers(ctx context.Context, socket string, pid int) bool {
	c := admin.NewClient(socket)
	defer c.Close()
	if at, err := c.DaemonPID(ctx); err != nil || at != pid {
		return false
	}
	_, err := c.Version(ctx)
	return err == nil
}
