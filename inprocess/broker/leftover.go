package broker

import (
	"context"
	"slices"
	"time"

	"github.com/smcgw/smcgw/inprocess/shared"
)

// Bounds of the interval between checks whether processes have let go of memory; it doubles from the first to the last.
const (
	firstLook  = 50 * time.Millisecond
	rarestLook = 10 * time.Second
)

// firstLookAtEnd is when the broker first looks whether an end is abandoned. The end's process says sooner if it has
// closed the connection.
const firstLookAtEnd = time.Second

// leftover is memory of a connection or client that has ended, or of a connection of which an end has. The kernel
// charges it to the broker for as long as any process has it, whatever that process says, so it keeps counting against
// the limits.
type leftover struct {
	over  func() bool // called with the lock; whether looking is no longer of use. nil: not before look says so
	at    time.Time   // of the next look
	pause time.Duration
	look  func() (gone bool, note func(*core))
	close func()
}

// keep adds a leftover. The caller holds the lock.
func (b *Broker) keep(l *leftover, first time.Duration) {
	l.pause = first
	l.at = time.Now().Add(l.pause)
	b.leftovers = append(b.leftovers, l)
	select {
	case b.left <- struct{}{}:
	default:
	}
}

func leftoverOf(p *conn) *leftover {
	m := p.mem
	return &leftover{close: m.close, look: func() (bool, func(*core)) {
		has, alone := m.holders(), false
		if e := p.here()[0]; e.half != nil { // as long as it carries, the gateway has the mirror, too
			writes, _ := elsewhere(m[e.side].Kept)
			alone = !writes
		}
		return has == [2]bool{}, func(c *core) {
			c.holds(p, has)
			if alone {
				p.here()[0].half.tellAlone()
			}
		}
	}}
}

// leftoverOfEnd is a connection between processes of this host of which one end has ended.
func leftoverOfEnd(b *Broker, p *conn) *leftover {
	m := p.mem
	return &leftover{over: func() bool { return b.core.conns[p.id] != p }, close: func() {}, look: func() (bool, func(*core)) {
		has := m.holders()
		return false, func(c *core) { c.abandoned(p, has) }
	}}
}

// leftoverOfClient is the leftover of a client: its desk and its news page.
func leftoverOfClient(m *member, desk, news int) *leftover {
	return &leftover{close: func() { shared.Close(&desk, &news) }, look: func() (bool, func(*core)) {
		gone := lease(desk, writeLease) && lease(news, writeLease)
		return gone, func(c *core) {
			if gone {
				c.letGo(m)
			}
		}
	}}
}

// lookAfter checks leftovers until ctx ends.
func (b *Broker) lookAfter(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		var due <-chan time.Time
		if next, more := b.lookAgain(); more {
			t.Reset(max(firstLook, time.Until(next)))
			due = t.C
		}
		select {
		case <-due:
			continue
		case <-b.left:
		case <-ctx.Done():
			return
		}
		t.Reset(firstLook) // others may follow
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookAgain checks the leftovers that are due. It returns when the next ones are, and whether there are any. It asks the
// kernel without the lock.
func (b *Broker) lookAgain() (next time.Time, more bool) {
	now := time.Now()
	var due []*leftover
	b.mu.Lock()
	b.leftovers = slices.DeleteFunc(b.leftovers, func(l *leftover) bool { return l.over != nil && l.over() })
	for _, l := range b.leftovers {
		if !l.at.After(now) {
			due = append(due, l)
		}
	}
	b.mu.Unlock()
	gone, notes := map[*leftover]bool{}, make([]func(*core), len(due))
	for i, l := range due {
		var is bool
		if is, notes[i] = l.look(); is {
			gone[l] = true
		}
		l.pause = min(2*l.pause, rarestLook)
	}
	b.mu.Lock()
	for i, l := range due {
		notes[i](b.core)
		l.at = now.Add(l.pause)
	}
	b.settle()
	b.leftovers = slices.DeleteFunc(b.leftovers, func(l *leftover) bool { return gone[l] })
	for _, l := range b.leftovers {
		if next.IsZero() || l.at.Before(next) {
			next = l.at
		}
	}
	more = len(b.leftovers) > 0
	b.mu.Unlock()
	for l := range gone {
		l.close()
	}
	return next, more
}
