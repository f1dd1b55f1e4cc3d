package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Bounds on connections held open.
const (
	idleDefault = 200
	maxIdle     = 4096
	// idleStep is how many connections are opened between two looks at the gateways.
	idleStep = 64
	// spareFiles is how many other files a program may have open.
	spareFiles = 64
)

// coldConns is how many connections to a cold peer a run makes; each is a line in the logs of the gateways.
const coldConns = 10

var errNoRoom = errors.New("no room for idle connections")

// openFiles returns how many files this process may open.
func openFiles() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, math.MaxInt32))
}

// hold opens connections and keeps them idle after one message in each direction, and measures the memory of the
// gateways before and with them.
func (s *session) hold(ctx context.Context, d time.Duration) (measured, error) {
	m := measured{began: time.Now()}
	before, err := s.weighBoth(ctx)
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxOrderTime) // the server holds them this long
	defer cancel()
	var held []func()
	defer func() {
		for _, done := range held {
			done()
		}
	}()
	want := s.idle
	for why := ""; m.count < want; {
		if why, err = s.full(ctx, m.count); err != nil {
			return m, err
		}
		if why == "" {
			var done func()
			if done, err = s.idleConn(ctx, &m); err == nil {
				held = append(held, done)
				m.count++
				continue
			}
			why = err.Error()
		}
		if m.count == 0 || ctx.Err() != nil {
			return m, fmt.Errorf("%w: %s", errNoRoom, why)
		}
		m.note = fmt.Sprintf("%d of %d connections held: %s", m.count, s.idle, why)
		break
	}
	settle(ctx, d)
	after, err := s.weighBoth(ctx)
	if err != nil {
		return m, err
	}
	m.elapsed = time.Since(m.began)
	for i := range before {
		m.memory[i] = before[i].until(after[i], m.count)
		m.say(i, before[i], after[i])
	}
	return m, nil
}

// say records why a value is missing.
func (m *measured) say(end int, before, after Memory) {
	where := [...]string{"this host", "the serving host"}[end]
	why := ""
	switch {
	case before.Rings == unknownBytes || after.Rings == unknownBytes:
		why = "the gateway on " + where + " does not tell its memory"
	case math.IsNaN(m.memory[end].heap), math.IsNaN(m.memory[end].resident), math.IsNaN(m.memory[end].rings):
		why = "the gateway on " + where + " freed more meanwhile"
	}
	if m.note == "" || why == "" {
		m.note += why
		return
	}
	m.note += "; " + why
}

// weighBoth measures the memory of both hosts' gateways.
func (s *session) weighBoth(ctx context.Context) (both [2]Memory, err error) {
	both[here] = weighed(ctx, s.own)
	both[there], err = s.weigh()
	return both, err
}

// full returns, every so often, why no more connections should be opened; empty: more may be.
func (s *session) full(ctx context.Context, count int) (string, error) {
	if count >= openFiles()-spareFiles {
		return "a program may have no more open files", nil
	}
	if count%idleStep != 0 {
		return "", nil
	}
	both, err := s.weighBoth(ctx)
	if err != nil {
		return "", err
	}
	for i, where := range [...]string{"here", "on the serving host"} {
		if of := both[i].full(); of != "" {
			return of + " is in use " + where, nil
		}
	}
	return "", nil
}

// idleConn opens a connection and sends something over it.
func (s *session) idleConn(ctx context.Context, m *measured) (done func(), err error) {
	c, done, err := s.start(ctx, workEcho, pingSize, maxOrderTime, m)
	if err != nil {
		return nil, err
	}
	m.conns = m.conns[max(0, len(m.conns)-lookups):]
	buf := make([]byte, pingSize)
	if _, err = c.Write(buf); err == nil {
		_, err = io.ReadFull(c, buf)
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// cold makes connections one after the other. Each is the first with its peer if the gateway was asked for that.
func (s *session) cold(ctx context.Context, d time.Duration) (measured, error) {
	m := measured{began: time.Now(), latency: hdrhistogram.New(1, int64(time.Minute), 3)}
	for range coldConns {
		sent := time.Now()
		if err := s.request(ctx, &m); err != nil {
			return m, err
		}
		took := time.Since(sent)
		m.elapsed += took
		m.count++
		if err := m.latency.RecordValue(max(1, int64(took))); err != nil {
			return m, fmt.Errorf("connection: %w", err)
		}
		if time.Since(m.began) >= d {
			break
		}
	}
	return m, nil
}
