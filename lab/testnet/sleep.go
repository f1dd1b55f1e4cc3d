package testnet

import (
	"context"
	"time"
)

// Sleep waits for d, or less if ctx ends before, with its cause as the error.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
