package bench

import (
	"context"
	"errors"
	"time"
)

// ahead is how long the stream beside a work flows before the work.
const ahead = 250 * time.Millisecond

var errStreamEnded = errors.New("the stream ended before the work beside it")

// besideStream does a work while a stream goes to the serving host the same way, from before the work until after it.
// The stream is a connection of the run like the others.
func besideStream(work run) run {
	return func(s *session, ctx context.Context, d time.Duration) (measured, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		flowing, over, ended := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
		var stream measured
		var errStream error
		go func() {
			defer close(ended)
			stream, errStream = s.stream(ctx, d, over, func() {
				select {
				case flowing <- struct{}{}:
				default:
				}
			})
		}()
		select {
		case <-ended:
			return stream, errors.Join(errStreamEnded, errStream)
		case <-flowing:
		}
		m, err := work(s, ctx, d)
		if err != nil {
			cancel()
			<-ended
			return m, err
		}
		select {
		case <-ended:
			return m, errors.Join(errStreamEnded, errStream)
		default:
		}
		close(over)
		<-ended
		m.conns, m.seen = append(m.conns, stream.conns...), append(m.seen, stream.seen...)
		m.began = stream.began
		return m, errStream
	}
}

// stream uploads until over, and calls flowing once it has done so for a while. The work beside it takes d.
func (s *session) stream(ctx context.Context, d time.Duration, over <-chan struct{}, flowing func()) (measured, error) {
	if s.load != nil {
		return s.load.do(ctx, s, workUpload, d+grace, over, flowing)
	}
	return s.uploadUntil(ctx, d, func(sent time.Duration) bool {
		if sent >= ahead {
			flowing()
		}
		select {
		case <-over:
			return true
		default:
			return false
		}
	})
}
