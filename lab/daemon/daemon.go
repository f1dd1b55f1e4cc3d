package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/lab/testnet"
)

const (
	// startTimeout bounds the start of a gateway.
	startTimeout = 10 * time.Second
	// heartbeat is how long an admin socket that answers must be left until the
	// heart has beaten, without which nothing is offered.
	heartbeat = 200 * time.Millisecond
	// askAgain is how often an admin socket is tried.
	askAgain = 20 * time.Millisecond
)

// Spec is a gateway to be started.
type Spec struct {
	Executable    string // the program
	File          string // where its configuration is written
	Configuration string // YAML; its admin socket is Socket, and it names a socket in in_process
	Socket        string
	TakeOver      bool // from the one that runs on the socket
}

// Start starts a gateway on host h and returns when it carries. Process and
// client are the caller's to end, also those returned with an error; the host
// ends the process at the latest.
func Start(ctx context.Context, h *testnet.Host, s Spec) (*testnet.Proc, *admin.Client, error) {
	if !strings.Contains(s.Configuration, "in_process:") { // the default is the machine's, which is not a laboratory's to serve or to remove
		return nil, nil, fmt.Errorf("configuration of %s: no in_process", h.Name)
	}
	if err := os.WriteFile(s.File, []byte(s.Configuration), 0o600); err != nil {
		return nil, nil, fmt.Errorf("configuration of %s: %w", h.Name, err)
	}
	args := []string{"up", "-c", s.File}
	if s.TakeOver {
		args = append(args, "--takeover")
	}
	p, err := h.Start(s.Executable, args...)
	if err != nil {
		return nil, nil, fmt.Errorf("gateway on %s: %w", h.Name, err)
	}
	admin := admin.NewClient(s.Socket)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.WaitOutput(ctx, "gateway is up"); err != nil {
		return p, admin, fmt.Errorf("gateway on %s: %w", h.Name, err)
	}
	if err := answers(ctx, admin); err != nil {
		return p, admin, fmt.Errorf("gateway on %s: %w", h.Name, err)
	}
	return p, admin, nil
}

// answers waits until the admin socket does, and the heart beats.
func answers(ctx context.Context, admin *admin.Client) error {
	for {
		if _, err := admin.Status(ctx); err == nil {
			return testnet.Sleep(ctx, heartbeat)
		} else if ctx.Err() != nil {
			return fmt.Errorf("admin socket: %w", err)
		}
		if err := testnet.Sleep(ctx, askAgain); err != nil {
			return err
		}
	}
}
