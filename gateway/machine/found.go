package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
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
