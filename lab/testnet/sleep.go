package testnet

import (
	"context"
	"time"
)

// Sleep waits for d. If ctx ends earlier, it returns the cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
