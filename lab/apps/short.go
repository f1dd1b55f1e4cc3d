package apps

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// short opens connections to an echo server, each for one request and its answer, several at a time. A time covers all
// of it: connect, request, answer, close. Besides the longest and the median, the result has the median of connect.
func (c *client) short() Event {
	var (
		mu    sync.Mutex // guards everything below
		e     Event
		left  = c.count
		took  []time.Duration
		dials []time.Duration
		all   sync.WaitGroup
	)
	next := func() bool {
		mu.Lock()
		defer mu.Unlock()
		left--
		return left >= 0 && e.Failed == 0
	}
	for range c.parallel {
		all.Go(func() {
			for next() {
				dial, whole, err := c.shortOne()
				mu.Lock()
				e = e.outcome(err)
				if err == nil {
					dials, took = append(dials, dial), append(took, whole)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(dials)
	if n := len(dials); n > 0 {
		e.ConnectMicros = dials[n/2].Microseconds()
	}
	return e.durations(took)
}

func (c *client) shortOne() (dial, whole time.Duration, err error) {
	start := time.Now()
	conn, dial, err := c.dial(c.to)
	if err != nil {
		return 0, 0, err
	}
	defer c.finish(conn)
	if c.limit > 0 {
		_ = conn.SetDeadline(start.Add(c.limit))
	}
	request, answer := make([]byte, c.size), make([]byte, c.size)
	s := stream{c.order.seed}
	s.fill(request, 0)
	if _, err := conn.Write(request); err != nil {
		return 0, 0, fmt.Errorf("request: %w", err)
	}
	if _, err := io.ReadFull(conn, answer); err != nil {
		return 0, 0, fmt.Errorf("answer: %w", err)
	}
	if at := s.check(answer, 0); at >= 0 {
		return 0, 0, wrongByteError{int64(at)}
	}
	c.finish(conn)
	return dial, time.Since(start), nil
}
