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

// A panic in code that works for one connection ends that connection: it is
// aborted, or falls back where its application is not connected
// yet, with reason internal_error. Shards say by WorksFor which connection they work for
// and go on after it; goroutines of a connection end by flow.contain. What
// works for none (a device, the datagram engine, the loop itself) has no such
// bound: there the daemon dies, and the guardian sees to the rest. So it does
// where panics become frequent: something that all share is broken.
const (
	// panicsMost is how many panics in panicsWithin a daemon may survive.
	panicsMost   = 10
	panicsWithin = time.Minute
)

// panics counts the panics of a gateway. The zero value is ready to use.
type panics struct {
	mu     sync.Mutex // guards everything below
	total  uint64
	recent []time.Time // of the last panicsMost
	stack  time.Time   // when a stack was logged
}

// note counts a panic. tooMany means that the daemon has to end, quiet that a
// stack has been logged just now.
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

// count returns how many there were.
func (p *panics) count() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

// Panics returns how many panics connections have ended by.
func (e *Env) Panics() uint64 { return e.panics.count() }

// Panicked ends the connection, whose work panicked with r, or the daemon. It is called where
// r was recovered, so that the stack is that of the panic. It implements loop.Owner.
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

// fail ends a flow whose own code cannot be trusted any more. Nothing of it is
// asked: what had arrived for the application is not delivered, since it is
// not known how much of it had been.
func (f *Flow) fail() {
	untouched := false
	if f.Side == report.SideClient && f.core.Phase() < life.Carrying {
		e, err := f.env.Steering.Flow(ebpf.Tuple(f.Tuple))
		untouched = err == nil && e.ISN == f.ISN && e.State == ebpf.StateNegotiating
	}
	s, ok := serverOf(f.hs)
	f.do(f.core.Panicked(untouched, !ok || s.Mute()))
}
