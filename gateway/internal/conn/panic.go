package conn

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
)

// A panic in code that works for one connection ends that connection: it is aborted, or falls
// back if its application is not connected yet, with reason internal_error. Shards call
// WorksFor to name the connection they work for, and continue after the panic; goroutines of
// a connection defer Flow.contain. A panic in code that works for no single connection (a
// device, the datagram engine, the loop itself) cannot be contained: the daemon dies and the
// guardian handles the rest. The same happens if panics become frequent, since then something
// shared is broken.
const (
	// panicsMost is how many panics the daemon survives within panicsWithin.
	panicsMost   = 10
	panicsWithin = time.Minute
)

// panics counts the panics of a gateway. The zero value is ready to use.
type panics struct {
	mu     sync.Mutex // guards everything below
	total  uint64
	recent []time.Time // times of the last panicsMost panics
	stack  time.Time   // when a stack was last logged
}

// note counts a panic. tooMany means that the daemon must end; quiet means that a stack was
// logged within panicsWithin.
func (p *panics) note(now time.Time) (tooMany, quiet bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total++
	if len(p.recent) == panicsMost {
		tooMany = now.Sub(p.recent[0]) < panicsWithin
		p.recent = p.recent[1:]
	}
	p.recent = append(p.recent, now)
	quiet = !p.stack.IsZero() && now.Sub(p.stack) < panicsWithin
	if !quiet {
		p.stack = now
	}
	return tooMany, quiet
}

// count returns the number of panics so far.
func (p *panics) count() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// Panics returns how many panics have been contained in connections.
func (e *Env) Panics() uint64 { return e.panics.count() }

// Panicked ends the connection, whose work panicked with r, or the daemon. It is called where
// r was recovered, so that the logged stack is that of the panic. It implements loop.Owner.
func (f *Flow) Panicked(r any) {
	e := f.env
	tooMany, quiet := e.panics.note(time.Now())
	args := []any{"panic", fmt.Sprint(r), "flow_id", f.ID, "state", f.state().String(), "side", string(f.Side)}
	if !quiet {
		args = append(args, "stack", string(debug.Stack()))
	}
	e.Log.Error("internal error: the connection ends", args...)
	if tooMany {
		e.Log.Error("too many internal errors: the daemon ends", "count", e.panics.count())
		e.Die()
		return
	}
	f.post(f.fail)
}

// contain is deferred by goroutines that work for one flow.
func (f *Flow) contain() {
	if r := recover(); r != nil {
		f.Panicked(r)
	}
}

// fail ends a flow whose own code can no longer be trusted. Data that had arrived for the
// application is not delivered, because it is unknown how much of it was delivered already.
func (f *Flow) fail() {
	untouched := false
	if f.Side == report.SideClient && f.core.Phase() < life.Carrying {
		e, err := f.env.Steering.Flow(ebpf.Tuple(f.Tuple))
		untouched = err == nil && e.ISN == f.ISN && e.State == ebpf.StateNegotiating
	}
	s, ok := serverOf(f.hs)
	f.do(f.core.Panicked(untouched, !ok || s.Mute()))
}
