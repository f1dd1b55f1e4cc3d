package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway"
)

// Gateway is what is asked of the gateway beside a program of this package.
// [Beside] makes one of an admin client.
type Gateway interface {
	// Try begins a trial; see [gateway.AdminClient.Try].
	Try(ctx context.Context, t gateway.Trial) (Held, error)
	// Conns lists connections, newest first.
	Conns(ctx context.Context, q gateway.ConnQuery) (gateway.ConnList, error)
	// Devices lists the RDMA devices of the configuration.
	Devices(ctx context.Context) (gateway.DeviceList, error)
	// DaemonPID is the process of the gateway; 0 if it cannot be seen.
	DaemonPID(ctx context.Context) (int, error)
}

// Held is a trial in force.
type Held interface {
	// Close ends it; the gateway notices a moment later. It is idempotent.
	Close()
	// Done is closed when it is over, whoever ended it.
	Done() <-chan struct{}
}

// Beside is the gateway behind an admin socket.
func Beside(c *gateway.AdminClient) Gateway { return beside{c} }

type beside struct{ *gateway.AdminClient }

// Try implements Gateway.
func (b beside) Try(ctx context.Context, t gateway.Trial) (Held, error) {
	h, err := b.AdminClient.Try(ctx, t)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// trialPatience is how long the end of the trial before may take to be noticed.
const trialPatience = 5 * time.Second

// try begins a trial and waits for the one before it to end.
func try(ctx context.Context, g Gateway, t gateway.Trial) (Held, error) {
	ctx, cancel := context.WithTimeout(ctx, trialPatience)
	defer cancel()
	for {
		h, err := g.Try(ctx, t)
		if !errors.Is(err, gateway.ErrTrialHeld) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("trial of port %d: %w", t.Port, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
