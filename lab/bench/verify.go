package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// verified does a work in one way, and fails unless the run really took that way.
func (w way) verified(ctx context.Context, do run, d time.Duration) ([]float64, error) {
	if w.begin == nil {
		return do(ctx, w, d)
	}
	check, err := w.begin(ctx)
	if err != nil {
		return nil, err
	}
	values, err := do(ctx, w, d)
	if wrong := check(ctx); wrong != nil {
		return nil, errors.Join(err, wrong)
	}
	return values, err
}

// claim is what must be true for every connection of a variant: the carriers it may use, and the reasons for which it
// may stay native.
type claim struct {
	carriers []report.Carrier
	reasons  []string
	// some says that at least one such connection must have been counted. Otherwise none need be.
	some bool
}

// errOtherWay means that a run was not what its variant claims.
var errOtherWay = errors.New("connections went another way")

// clientGone is acceptable for every variant: a program ended while it was still connecting, as load generators do when
// their time is up.
const clientGone = "client_gone"

// verify compares the changes of the counters between two readings with the claim.
func (c claim) verify(before, after report.Status) error {
	counted := uint64(0)
	var errs []error
	for carrier, n := range after.FlowsTotal {
		n -= before.FlowsTotal[carrier]
		switch {
		case slices.Contains(c.carriers, carrier):
			counted += n
		case n > 0:
			errs = append(errs, fmt.Errorf("%w: %d by %s", errOtherWay, n, carrier))
		}
	}
	for reason, n := range after.FallbacksTotal {
		n -= before.FallbacksTotal[reason]
		switch {
		case slices.Contains(c.reasons, reason):
			counted += n
		case reason == clientGone:
		case n > 0:
			errs = append(errs, fmt.Errorf("%w: %d native, %s", errOtherWay, n, reason))
		}
	}
	if c.some && counted == 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("%w: none was counted as carried by %v or native for %v", errOtherWay, c.carriers, c.reasons))
	}
	return errors.Join(errs...)
}

// settling is how long it may take until decisions of the eBPF programs are counted. The gateway collects them ten
// times a second.
const settling = 150 * time.Millisecond

// watch reads the counters of gateways before a run, and returns a function that verifies the claim after it. The first
// gateway is that of the client, which decides; the others need not have counted anything.
func watch(c claim, of ...*host) func(ctx context.Context) (func(ctx context.Context) error, error) {
	return func(ctx context.Context) (func(ctx context.Context) error, error) {
		before, err := statuses(ctx, of)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			if err := testnet.Sleep(ctx, settling); err != nil {
				return err
			}
			after, err := statuses(ctx, of)
			if err != nil {
				return err
			}
			var errs []error
			for i, h := range of {
				c := claim{c.carriers, c.reasons, c.some && i == 0}
				if err := c.verify(before[i], after[i]); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", h.Name, err))
				}
			}
			return errors.Join(errs...)
		}, nil
	}
}

// rings is watch for connections that are promoted between hosts, whose bytes use rings on both hosts.
func rings(of ...*host) func(ctx context.Context) (func(ctx context.Context) error, error) {
	return func(ctx context.Context) (func(ctx context.Context) error, error) {
		before, err := statuses(ctx, of)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			after, err := statuses(ctx, of)
			if err != nil {
				return err
			}
			for i, h := range of {
				was, is := before[i].InProcess, after[i].InProcess
				if is.ConnectionsTotal == was.ConnectionsTotal && is.Connections == 0 || is.RingBytesTotal-was.RingBytesTotal < fewestRingBytes {
					return fmt.Errorf("%w: %s: %d promoted, %d bytes by rings", errOtherWay, h.Name, is.ConnectionsTotal-was.ConnectionsTotal, is.RingBytesTotal-was.RingBytesTotal)
				}
			}
			return nil
		}, nil
	}
}

func statuses(ctx context.Context, of []*host) (list []report.Status, err error) {
	for _, h := range of {
		st, err := h.gateway.admin.Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("status of %s: %w%s", h.Name, err, h.gateway.lastWords())
		}
		list = append(list, st)
	}
	return list, nil
}
