package process

import (
	"context"
	"sync"
)

// Lane runs work that the kernel may block without limit, such as access to a file on a
// server that does not answer. It runs one at a time, so that what is blocked stays bounded.
// The zero value is ready to use.
type Lane struct {
	made sync.Once
	work chan struct{} // capacity 1: full while work is running
}

// Through returns what work returns, or the cause of the end of ctx if that comes first. In
// the latter case work that has begun continues on its own, and later work waits until it has
// returned.
func Through[T any](ctx context.Context, l *Lane, work func() (T, error)) (out T, err error) {
	l.made.Do(func() { l.work = make(chan struct{}, 1) })
	select {
	case l.work <- struct{}{}:
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
	type answer struct {
		out T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		out, err := work()
		<-l.work
		done <- answer{out, err}
	}()
	select {
	case a := <-done:
		return a.out, a.err
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
}

// Do is [Through] for work that returns only an error.
func (l *Lane) Do(ctx context.Context, work func() error) error {
	_, err := Through(ctx, l, func() (struct{}, error) { return struct{}{}, work() })
	return err
}
