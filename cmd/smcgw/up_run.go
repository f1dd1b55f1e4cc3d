package main

import (
	"context"
	"log/slog"

	"github.com/smcgw/smcgw/gateway"
)

// runDaemon is the daemon.
func runDaemon(ctx context.Context, cfg gateway.Config, log *slog.Logger, s gateway.Supervisor) error {
	return gateway.Run(ctx, cfg, gateway.RunOptions{Logger: log, Version: buildVersion(), Supervisor: s})
}
