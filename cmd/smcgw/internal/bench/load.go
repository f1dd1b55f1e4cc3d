package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/smcgw/smcgw/gateway/report"
)

// measured is the result of one run of a work.
type measured struct {
	bytes   uint64 // payload bytes, in the work's direction
	elapsed time.Duration
	latency *hdrhistogram.Histogram // nanoseconds
	count   int                     // round trips, or connections that succeeded
	failed  int                     // connections that failed
	began   time.Time
	conns   []tuple           // the last connections, to be looked up
	memory  [2]growth         // growth of the gateway here and on the serving host
	seen    []report.ConnInfo // connections of [Program], recorded before they ended
	note    string            // what a reader must know
}

// tuple identifies a connection on the measuring host.
type tuple struct{ local, remote netip.AddrPort }

// Bounds of a run.
const (
	// pingSize is the size of an echoed message.
	pingSize = 64
	// replySize is the size of an answer to a request.
	replySize = 256
	// rateWorkers make connections at the same time.
	rateWorkers = 8
	// lookups is how many connections of a run, the last ones, are looked up: a gateway remembers about a thousand.
	lookups = 200
)

// start connects for an order and sends it. The connection ends with ctx, at the latest when its time and the grace are
// over; done releases it.
func (s *session) start(ctx context.Context, w work, size int, d time.Duration, m *measured) (c *net.TCPConn, done func(), err error) {
	c, err = dial(ctx, s.to, s.ports)
	if err != nil {
		return nil, nil, err
	}
	local, remote, err := ends(c)
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	m.conns = append(m.conns, tuple{local, remote})
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	done = func() {
		stop()
		_ = c.Close()
	}
	err = c.SetDeadline(time.Now().Add(d + grace))
	if err == nil {
		_, err = c.Write(s.order(w, size, d))
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return c, done, nil
}

// upload sends for a time, at least one block. It counts the bytes that the server has read when it answers.
func (s *session) upload(ctx context.Context, d time.Duration) (measured, error) {
	if s.load != nil {
		return s.load.do(ctx, s, workUpload, d, nil, nil)
	}
	return s.uploadUntil(ctx, d, func(sent time.Duration) bool { return sent >= d })
}

// uploadUntil sends until enough, which is called after every write, returns true; the server waits for d and the
// grace.
func (s *session) uploadUntil(ctx context.Context, d time.Duration, enough func(sent time.Duration) bool) (measured, error) {
	m := measured{began: time.Now()}
	c, done, err := s.start(ctx, workUpload, 0, d, &m)
	if err != nil {
		return m, err
	}
	defer done()
	buf := make([]byte, blockSize)
	begin := time.Now()
	for {
		if _, err := c.Write(buf); err != nil {
			return m, err
		}
		if enough(time.Since(begin)) {
			break
		}
	}
	if err := c.CloseWrite(); err != nil {
		return m, err
	}
	var count [8]byte
	if _, err := io.ReadFull(c, count[:]); err != nil {
		return m, fmt.Errorf("answer to an upload: %w", err)
	}
	m.elapsed = time.Since(begin)
	m.bytes = binary.BigEndian.Uint64(count[:])
	return m, nil
}

// download receives for a time.
func (s *session) download(ctx context.Context, d time.Duration) (measured, error) {
	if s.load != nil {
		return s.load.do(ctx, s, workDownload, d, nil, nil)
	}
	m := measured{began: time.Now()}
	c, done, err := s.start(ctx, workDownload, 0, d, &m)
	if err != nil {
		return m, err
	}
	defer done()
	buf := make([]byte, blockSize)
	begin := time.Now()
	for {
		n, err := c.Read(buf)
		m.bytes += uint64(n)
		if errors.Is(err, io.EOF) {
			m.elapsed = time.Since(begin)
			return m, nil
		}
		if err != nil {
			return m, err
		}
	}
}

// ping measures round trips of small messages, at least one. The first tenth of the time is warm-up.
func (s *session) ping(ctx context.Context, d time.Duration) (measured, error) {
	if s.load != nil {
		return s.load.do(ctx, s, workEcho, d, nil, nil)
	}
	m := measured{began: time.Now(), latency: hdrhistogram.New(1, int64(time.Minute), 3)}
	c, done, err := s.start(ctx, workEcho, pingSize, d, &m)
	if err != nil {
		return m, err
	}
	defer done()
	buf := make([]byte, pingSize)
	begin := time.Now()
	for {
		sent := time.Now()
		if sent.Sub(begin) >= d && m.latency.TotalCount() > 0 {
			break
		}
		if _, err := c.Write(buf); err != nil {
			return m, err
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			return m, err
		}
		m.count++
		if sent.Sub(begin) >= d/10 {
			if err := m.latency.RecordValue(max(1, int64(time.Since(sent)))); err != nil {
				return m, fmt.Errorf("round trip: %w", err)
			}
		}
	}
	m.elapsed = time.Since(begin)
	return m, nil
}

// request connects, sends one request, reads its answer, and waits for the server to close first: TIME_WAIT is then at
// the server, and our port is free again.
func (s *session) request(ctx context.Context, m *measured) error {
	c, done, err := s.start(ctx, workRequest, replySize, 0, m)
	if err != nil {
		return err
	}
	defer done()
	n, err := io.Copy(io.Discard, io.LimitReader(c, replySize+1))
	if err != nil {
		return err
	}
	if n != replySize {
		return fmt.Errorf("answer of %d bytes instead of %d: %w", n, replySize, io.ErrUnexpectedEOF)
	}
	return nil
}

// rate makes connections with several workers for a time, at least one each.
func (s *session) rate(ctx context.Context, d time.Duration) (measured, error) {
	begin := time.Now()
	parts := make([]measured, rateWorkers)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { s.rateWorker(ctx, begin.Add(d), &parts[i]) })
	}
	wg.Wait()
	m := measured{began: begin, elapsed: time.Since(begin)}
	for _, p := range parts {
		m.count += p.count
		m.failed += p.failed
		m.conns = append(m.conns, p.conns...)
	}
	if m.count == 0 {
		return m, errors.New("no connection succeeded")
	}
	return m, ctx.Err()
}

func (s *session) rateWorker(ctx context.Context, end time.Time, m *measured) {
	for begun := false; !begun || time.Now().Before(end) && ctx.Err() == nil; begun = true {
		if err := s.request(ctx, m); err != nil {
			m.failed++
			if m.failed > 100 { // a refused connect takes no time
				return
			}
			continue
		}
		m.count++
		if n := len(m.conns); n > lookups/rateWorkers {
			m.conns = append(m.conns[:0], m.conns[n-lookups/rateWorkers:]...)
		}
	}
}

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
