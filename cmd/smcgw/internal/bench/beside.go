package bench

import (
	"context"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Gateway is the interface to the gateway beside a program of this package. [Beside] makes one of an admin client.
type Gateway interface {
	// Try starts a trial; see [admin.Client.Try].
	Try(ctx context.Context, t config.Trial) (Held, error)
	// Conns lists connections, newest first.
	Conns(ctx context.Context, q report.ConnQuery) (admin.ConnList, error)
	// Devices lists the RDMA devices of the configuration.
	Devices(ctx context.Context) (admin.DeviceList, error)
	// Metrics returns the gateway's metrics, in Prometheus' text format.
	Metrics(ctx context.Context) ([]byte, error)
	// DaemonPID returns the process of the gateway, or 0 if it cannot be seen.
	DaemonPID(ctx context.Context) (int, error)
}

// Held is a trial in force.
type Held interface {
	// Close ends the trial; the gateway notices a moment later. It is idempotent.
	Close()
	// Done returns a channel that is closed when the trial is over, whichever side ended it.
	Done() <-chan struct{}
}

// Beside returns the gateway behind an admin socket.
func Beside(c *admin.Client) Gateway { return beside{c} }

type beside struct{ *admin.Client }

// Try implements Gateway.
func (b beside) Try(ctx context.Context, t config.Trial) (Held, error) {
	h, err := b.Client.Try(ctx, t)
	if err != nil {
		return nil, err
	}
	return h, nil
}
