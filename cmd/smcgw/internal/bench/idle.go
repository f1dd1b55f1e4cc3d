package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
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

// Memory is the memory that a gateway uses and may use; [unknownBytes] if it does not tell. It is read from the
// gateway's metrics, which are available even if a network namespace or container hides the process.
type Memory struct {
	// Rings is the memory of connections' rings and buffers, RingsLimit its limit.
	Rings      uint64 `json:"rings"`
	RingsLimit uint64 `json:"rings_limit"`
	// Heap is heap and stacks, including garbage; Resident is the whole process.
	Heap     uint64 `json:"heap"`
	Resident uint64 `json:"resident"`
	// Flows is the number of flows carried now, FlowLimit its limit.
	Flows     uint64 `json:"flows"`
	FlowLimit uint64 `json:"flow_limit"`
}

const unknownBytes = ^uint64(0)

// values returns all fields, in the order of memorySeries.
func (m *Memory) values() [6]*uint64 {
	return [...]*uint64{&m.Rings, &m.RingsLimit, &m.Heap, &m.Resident, &m.Flows, &m.FlowLimit}
}

func unknownMemory() (m Memory) {
	for _, v := range m.values() {
		*v = unknownBytes
	}
	return m
}

// memorySeries lists the metrics whose sum is each value. A name that ends in a brace stands for all series with that
// prefix.
var memorySeries = [6][]string{
	{`smcgw_registered_memory_bytes{kind="used"}`},
	{"smcgw_memory_limit_bytes"},
	{"go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes"},
	{"process_resident_memory_bytes"},
	{"smcgw_flows{"},
	{"smcgw_flow_limit"},
}

// parseMemory parses metrics. A value is unknown if one of its series is missing.
func parseMemory(metrics []byte) Memory {
	m := unknownMemory()
	var seen [6]int
	var sums [6]float64
	for lines := bufio.NewScanner(bytes.NewReader(metrics)); lines.Scan(); {
		series, text, ok := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(text, 64)
		if !ok || err != nil || !(v >= 0 && v < 1<<62) {
			continue
		}
		for i, wanted := range memorySeries {
			for _, w := range wanted {
				if series == w || strings.HasSuffix(w, "{") && strings.HasPrefix(series, w) {
					sums[i] += v
					seen[i]++
				}
			}
		}
	}
	for i, v := range m.values() {
		if seen[i] >= len(memorySeries[i]) {
			*v = uint64(sums[i])
		}
	}
	return m
}

// weighed returns the current memory of a gateway; it is unknown if there is none or it does not answer.
func weighed(ctx context.Context, g Gateway) Memory {
	if g == nil {
		return unknownMemory()
	}
	metrics, err := g.Metrics(ctx)
	if err != nil {
		return unknownMemory()
	}
	return parseMemory(metrics)
}

// share is the fraction, 1/share, of a gateway's limits that may be in use while more idle connections are opened. The
// rest is left to programs.
const share = 4

// full returns which limit has a quarter in use; empty: none.
func (m Memory) full() string {
	over := func(has, limit uint64) bool {
		return has != unknownBytes && limit != unknownBytes && has > limit/share
	}
	switch {
	case over(m.Rings, m.RingsLimit):
		return "a quarter of limits.memory"
	case over(m.Flows, m.FlowLimit):
		return "a quarter of the flow limit"
	default:
		return ""
	}
}

// growth is the additional memory of a gateway per connection, in bytes; NaN if unknown.
type growth struct{ rings, heap, resident float64 }

// until returns the growth from m to n per connection.
func (m Memory) until(n Memory, conns int) growth {
	each := func(before, after uint64) float64 {
		if before == unknownBytes || after == unknownBytes || after < before {
			return math.NaN()
		}
		return float64(after-before) / float64(conns)
	}
	return growth{each(m.Rings, n.Rings), each(m.Heap, n.Heap), each(m.Resident, n.Resident)}
}

// The ends of a run, and the parts of memory.
const here, there = 0, 1

func rings(g growth) float64    { return g.rings }
func heap(g growth) float64     { return g.heap }
func resident(g growth) float64 { return g.resident }

// perFlow returns a part of the memory per connection at one end.
func perFlow(end int, part func(growth) float64) func(measured, cost) float64 {
	return func(m measured, _ cost) float64 { return part(m.memory[end]) }
}
