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
	startTimeout = 30 * time.Second
	// heartbeat is how long to wait after the admin socket answers for the first heartbeat, before which nothing is
	// offered.
	heartbeat = 200 * time.Millisecond
	// askAgain is the interval between attempts to reach an admin socket.
	askAgain = 20 * time.Millisecond
)

// Spec describes a gateway to start.
type Spec struct {
	Executable    string // the program
	File          string // where to write its configuration
	Configuration string // YAML; must set its admin socket to Socket, and name a socket in in_process
	Socket        string
	TakeOver      bool // from the gateway that serves the socket
}

// Start starts a gateway on host h and returns when it carries. The caller must end the process and the client, even if
// Start also returns an error; the host ends the process at the latest.
func Start(ctx context.Context, h *testnet.Host, s Spec) (*testnet.Proc, *admin.Client, error) {
	if !strings.Contains(s.Configuration, "in_process:") { // the default belongs to the machine, not to the laboratory
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

// answers waits until the admin socket answers and there is a heartbeat.
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
