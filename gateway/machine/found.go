package machine

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
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
