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
	"github.com/smcgw/smcgw/internal/procfs"
)

// Found is a gateway of this machine, whatever its configuration.
type Found struct {
	// PID is the daemon, or another process of the gateway if the daemon is unknown.
	PID int
	// Namespace names the network namespace of the gateway; Here: it is the caller's.
	Namespace string
	Here      bool
	// Path is the admin socket as the daemon sees it, Socket the path by which the caller
	// reaches it; empty if it was not found.
	Path, Socket string
}

// String names the gateway for operators.
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
	// searchPatience bounds a search; answerPatience bounds the wait for one process.
	searchPatience = 5 * time.Second
	answerPatience = 2 * time.Second
)

// Find lists the gateways of this machine that the caller can see, including those that are
// draining. It recognizes them by the devices that they hold, which only a privileged process
// can create, and by the admin sockets of privileged processes, which gateways without
// devices have, too. Their configurations do not matter. Finding the sockets requires root. A
// gateway that does not answer delays no other.
func Find(ctx context.Context) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, searchPatience)
	defer cancel()
	own, err := os.Readlink("/proc/thread-self/ns/net") // the main thread may be in another one
	if err != nil {
		return nil, fmt.Errorf("own network namespace: %w", err)
	}
	spaces, err := listSpaces()
	if err != nil {
		return nil, err
	}
	var list []Found
	var mu sync.Mutex // guards list
	var asked sync.WaitGroup
	for ns, s := range spaces {
		asked.Go(func() {
			for _, f := range s.find(ctx) {
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

// endPatience bounds the wait for a gateway that closes its socket before it ends.
const endPatience = 3 * time.Second

// Tell gives gateways an order, all concurrently. Each has its own timeout, so one that does
// not answer does not keep the order from the others. said holds their replies and missed the
// errors of the others, both in the order of list.
func Tell(ctx context.Context, list []Found, patience time.Duration, order func(context.Context, *admin.Client) (admin.Result, error)) (said []string, missed []error) {
	results, errs := make([]admin.Result, len(list)), make([]error, len(list))
	var told sync.WaitGroup
	for i, f := range list {
		told.Go(func() { results[i], errs[i] = f.tell(ctx, patience, order) })
	}
	told.Wait()
	for i, f := range list {
		if errs[i] != nil {
			missed = append(missed, errs[i])
			continue
		}
		said = append(said, fmt.Sprintf("%v: %s", f, results[i].Message))
	}
	return said, missed
}

// tell gives one gateway the order.
func (f Found) tell(ctx context.Context, patience time.Duration, order func(context.Context, *admin.Client) (admin.Result, error)) (admin.Result, error) {
	if f.Socket == "" {
		if f.ends(ctx) {
			return admin.Result{Message: "has ended"}, nil
		}
		return admin.Result{}, fmt.Errorf("%v was not told: it does not answer, or you are not root; name its -c or --socket", f)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := admin.NewClient(f.Socket)
	defer c.Close()
	res, err := order(ctx, c)
	if err != nil {
		return res, fmt.Errorf("%v: %w", f, err)
	}
	return res, nil
}

// ends waits a while for a process without a socket to end, as one does that has just been replaced.
func (f Found) ends(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !procfs.Ends(f.PID) {
		select {
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
	return true
}

// suspect is a process that may belong to a gateway.
type suspect struct {
	pid     int
	device  bool     // it holds a device of a gateway
	sockets []string // inodes of sockets that listen like an admin socket
	found   Found
	answers bool
}

// find lists the gateways of a namespace.
func (s *space) find(ctx context.Context) []Found {
	var suspects []*suspect
	var closed []int // look like gateways but cannot be inspected
	for _, pid := range s.pids {
		device, sockets, err := s.holds(pid)
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist) && looksLikeOne(pid):
			closed = append(closed, pid)
		case device || len(sockets) > 0 && privileged(pid):
			suspects = append(suspects, &suspect{pid: pid, device: device, sockets: sockets})
		}
	}
	var asked sync.WaitGroup
	for _, p := range suspects {
		asked.Go(func() { p.found, p.answers = s.answering(ctx, p) })
	}
	asked.Wait()
	return gatewaysOf(suspects, closed)
}

// gatewaysOf lists the suspects that answer, and one process of each gateway that does not.
func gatewaysOf(suspects []*suspect, silent []int) (list []Found) {
	guardians, served := map[int]bool{}, map[string]bool{} // served: sockets of those that answer
	for _, p := range suspects {
		if !p.answers {
			continue
		}
		list = append(list, p.found)
		guardians[process.GuardianOf(p.pid)] = true
		for _, inode := range p.sockets {
			served[inode] = true
		}
	}
	for _, p := range suspects {
		inherited := slices.ContainsFunc(p.sockets, func(inode string) bool { return served[inode] })
		if !p.answers && (p.device || !inherited && looksLikeOne(p.pid)) {
			silent = append(silent, p.pid)
		}
	}
	for _, pid := range silent {
		if !guardians[pid] && !slices.Contains(silent, process.GuardianOf(pid)) {
			list = append(list, Found{PID: pid})
		}
	}
	return list
}

// looksLikeOne is for processes that cannot be queried: it recognizes the command line of a
// gateway, which other verbs do not have.
func looksLikeOne(pid int) bool {
	line, _ := os.ReadFile(process.File(pid, "cmdline"))
	args := strings.Split(string(line), "\x00")
	return len(args) > 1 && strings.HasPrefix(filepath.Base(args[0]), "smcgw") && slices.Contains(args[1:], "up")
}

// privileged reports whether a process has every privilege that a gateway keeps. Others are
// not queried, since any process can create sockets.
func privileged(pid int) bool {
	own, errOwn := os.Readlink("/proc/self/ns/user")
	its, errIts := os.Readlink(process.File(pid, "ns/user"))
	status, errStatus := os.ReadFile(process.File(pid, "status"))
	set, _ := procfs.Value(string(status), "CapEff")
	has, errHas := strconv.ParseUint(set, 16, 64)
	if errors.Join(errOwn, errIts, errStatus, errHas) != nil || own != its {
		return false
	}
	return !slices.ContainsFunc(process.Capabilities(), func(c process.Capability) bool { return !c.Optional && has>>c.Number&1 == 0 })
}

// holds reports whether a process holds a device of a gateway, and returns the inodes of the
// admin sockets it holds.
func (s *space) holds(pid int) (device bool, sockets []string, err error) {
	fds, err := os.ReadDir(process.File(pid, "fd"))
	if err != nil {
		return false, nil, err
	}
	for _, fd := range fds {
		to, _ := os.Readlink(process.File(pid, "fd/"+fd.Name()))
		inode, ok := strings.CutPrefix(to, "socket:[")
		if inode = strings.TrimSuffix(inode, "]"); ok && s.admin[inode] != "" {
			sockets = append(sockets, inode)
		}
		if to == "/dev/net/tun" && !device {
			info, _ := os.ReadFile(process.File(pid, "fdinfo/"+fd.Name()))
			device = bytes.Contains(info, []byte("iff:\t"+ownDevice))
		}
	}
	return device, sockets, nil
}

// answering looks for an admin socket on which a process answers.
func (s *space) answering(ctx context.Context, p *suspect) (Found, bool) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	for _, inode := range p.sockets {
		place := s.admin[inode]
		for _, path := range []string{place, place + config.DrainingSuffix} {
			for _, socket := range []string{path, filepath.Join(process.File(p.pid, "root"), path)} {
				if answers(ctx, socket, p.pid) {
					return Found{PID: p.pid, Path: path, Socket: socket}, true
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
