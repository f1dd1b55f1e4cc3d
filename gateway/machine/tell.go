package machine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/internal/procfs"
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
