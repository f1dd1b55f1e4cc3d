package carrier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// scanEvery is how often to look for adapters that are not open, and to query open ports:
	// a change of the MTU raises no event.
	scanEvery = 10 * time.Second
	// portPatience is how long a port may be down before its connections leave it.
	portPatience = time.Second
	// withdrawSoft is how long connections may take to leave an adapter that is withdrawn,
	// and withdrawMost when they must have left: its driver waits until it is closed. A
	// hanging adapter call delays this further.
	withdrawSoft = 2 * time.Second
	withdrawMost = 4 * time.Second
	withdrawTurn = 20 * time.Millisecond
	withdrawLate = time.Second
)

// departure is why an adapter of this host is not open.
type departure struct {
	state  report.DeviceState
	why    string
	port   verbs.PortAttr // last state; zero: it was never open
	stays  bool           // withdrawn by an operator: until it has been away, or Return
	logged bool
}

// tend looks for adapters until the device is closed.
func (h *Hardware) tend() {
	changed, stop := h.host.Changed()
	defer stop()
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-changed:
		case <-tick.C:
		}
		if err := h.scan(); err != nil {
			h.env.Log.Debug("look for adapters", "error", err)
		}
		for _, a := range h.open() {
			h.refresh(a)
		}
	}
}

// scan opens adapters of the host that are not open, and closes those that the host no longer
// has, because the event that says so may be lost. Only tend calls it, and openAdapters
// before tend starts.
func (h *Hardware) scan() error {
	names, err := h.host.List(h.layer)
	if err != nil {
		return err
	}
	h.mu.Lock()
	for name := range h.left {
		if !slices.Contains(names, name) {
			delete(h.left, name)
		}
	}
	var fresh []string
	for _, name := range names {
		open := slices.ContainsFunc(h.adapters, func(a *adapter) bool { return a.name == name })
		if !open && !h.left[name].stays && !h.shut {
			fresh = append(fresh, name)
		}
	}
	gone := slices.DeleteFunc(slices.Clone(h.adapters), func(a *adapter) bool { return slices.Contains(names, a.name) || a.isLeaving() })
	for _, a := range gone {
		h.untilShut(func() { h.lost(a, "gone from the host") })
	}
	h.mu.Unlock()
	for _, name := range fresh {
		h.admit(name)
	}
	return nil
}

// admit opens an adapter.
func (h *Hardware) admit(name string) {
	a, err := h.newAdapter(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		d := h.left[name]
		d.state, d.why = report.DeviceAbsent, err.Error()
		if !d.logged {
			h.env.Log.Info("RDMA adapter left out", "device", name, "reason", err)
		}
		d.logged = true
		h.left[name] = d
		return
	}
	delete(h.left, name)
	h.adapters = append(h.adapters, a)
	slices.SortFunc(h.adapters, func(a, b *adapter) int { return strings.Compare(a.name, b.name) })
	h.env.Log.Info("RDMA adapter in use", "device", name, "mtu", a.port.Load().ActiveMTU.Bytes())
}

// attend handles the events of an adapter until it closes.
func (h *Hardware) attend(a *adapter) {
	for {
		e, err := a.dev.Async().Get(a.ctx)
		if err != nil {
			return
		}
		switch e.Type {
		case verbs.EventDeviceFatal, verbs.EventCQErr:
			h.mu.Lock()
			h.untilShut(func() { h.lost(a, e.Type.String()) }) // not here: withdraw waits for this goroutine
			h.mu.Unlock()
			return
		case verbs.EventQPFatal, verbs.EventQPAccessErr, verbs.EventQPReqErr:
			h.failed(a, e.QP)
		case verbs.EventPortErr:
			h.refresh(a)
			a.done.Go(func() { h.leaveDown(a) })
		case verbs.EventPortActive, verbs.EventGIDChange, verbs.EventLIDChange, verbs.EventPKeyChange, verbs.EventSMChange, verbs.EventClientReregister:
			h.refresh(a)
			a.kick()
		default:
		}
	}
}

// kick requests another look at the network around the port.
func (a *adapter) kick() {
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

// lookAround serves the requests of kick until the adapter closes.
func (h *Hardware) lookAround(a *adapter) {
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-a.moved:
			h.net.changed(a)
		}
	}
}

// failed tells a link that its queue pair has failed, if the adapter reports it before any
// completion.
func (h *Hardware) failed(a *adapter, qp verbs.QP) {
	l := a.linkOf(qp)
	if l == nil {
		return
	}
	l.Shard.Post(func() {
		if l.phase == linkCarries {
			l.Shard.WorksFor(l.Owner())
			l.of.User.Broken()
		}
	})
}

// refresh queries the port of an adapter. Connections leave addresses that it no longer has.
func (h *Hardware) refresh(a *adapter) {
	a.look.Lock()
	port := a.dev.Port()
	before := a.port.Swap(&port)
	a.look.Unlock()
	if before.State != port.State {
		h.env.Log.Info("RDMA port", "device", a.name, "state", port.State)
	}
	gone := func(l *Link) bool {
		hl := l.peer.(*hwLink)
		return hl.a == a && (int(hl.index) >= len(port.GIDs) || port.GIDs[hl.index] != hl.gid || hl.lid != port.LID)
	}
	a.mu.Lock()
	some := false
	for _, l := range a.links {
		some = some || gone(l)
	}
	a.mu.Unlock()
	if some {
		h.env.Log.Info("RDMA address gone: its connections go on over the relay", "device", a.name)
		h.env.Vacate(h.Kind(), gone, false)
	}
}

// leaveDown makes connections leave a port that stays down.
func (h *Hardware) leaveDown(a *adapter) {
	select {
	case <-a.ctx.Done():
		return
	case <-time.After(portPatience):
	}
	h.refresh(a) // the query at the event may have come too early
	if a.port.Load().State != verbs.PortActive {
		h.env.Vacate(h.Kind(), a.has, false)
	}
}

// has reports whether a link uses this adapter.
func (a *adapter) has(l *Link) bool { return l.peer.(*hwLink).a == a }

// lost closes an adapter that has failed; scan opens it again.
func (h *Hardware) lost(a *adapter, why string) {
	h.env.Log.Warn("RDMA adapter lost", "device", a.name, "event", why)
	if err := h.withdraw(a, departure{state: report.DeviceFailed, why: why}); err != nil {
		h.env.Log.Error("close RDMA adapter", "device", a.name, "error", err)
	}
}

// Withdraw closes an adapter, or all ports of one, so that its driver can be unloaded. Its
// connections continue over the relay. It is opened again after it has been away, or by
// Return. Withdraw returns the number of connections that had a queue pair on it.
func (h *Hardware) Withdraw(name string) (n int, err error) {
	found := false
	var errs []error
	for _, a := range h.open() {
		if a.name != name && !strings.HasPrefix(a.name, name+"/") {
			continue
		}
		found = true
		a.mu.Lock()
		n += a.pairs
		a.mu.Unlock()
		errs = append(errs, h.withdraw(a, departure{state: report.DeviceDown, why: "left to its driver by the operator", stays: true}))
	}
	if !found {
		return 0, fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	return n, errors.Join(errs...)
}

// Return allows adapters closed by Withdraw to be used again.
func (h *Hardware) Return() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, d := range h.left {
		d.stays = false
		h.left[name] = d
	}
}

// withdraw makes connections leave an adapter and closes it.
func (h *Hardware) withdraw(a *adapter, d departure) error {
	d.port = *a.port.Load()
	h.mu.Lock()
	a.mu.Lock()
	was := a.leaving
	a.leaving = true
	a.mu.Unlock()
	if !was || d.stays {
		h.left[a.name] = d
	}
	h.mu.Unlock()
	if was {
		return nil // another call does it
	}
	start := time.Now()
	for turn := 0; turn < 2 || a.busy(); turn++ { // at least two turns: a handshake may have been under way
		spent := time.Since(start)
		if spent > withdrawMost {
			return h.overdue(a)
		}
		h.vacate(a, spent > withdrawSoft)
		time.Sleep(withdrawTurn)
	}
	h.mu.Lock()
	h.drop(a)
	h.mu.Unlock()
	return a.close(true)
}

// vacate makes everything that uses an adapter leave it.
func (h *Hardware) vacate(a *adapter, hard bool) {
	h.env.Withdrawn(a.dev)
	h.env.Vacate(h.Kind(), a.has, hard)
	a.copyTails()
}

// overdue takes an adapter out of use that connections have not left in time. It is closed
// once they have. What a hanging call makes is closed when the call returns.
func (h *Hardware) overdue(a *adapter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(a)
	h.late = append(h.late, a)
	h.untilShut(func() { h.closeLate(a) })
	return fmt.Errorf("connections or datagrams have not left in %v: %w", withdrawMost, verbs.ErrBusy)
}

// untilShut runs work, which closes an adapter, on a goroutine that Close waits for. Once
// Close has begun it does nothing: Close closes what is still open. The caller holds h.mu.
func (h *Hardware) untilShut(work func()) {
	if !h.shut {
		h.work.Go(work)
	}
}

// drop removes an adapter from the open ones and saves its counters; what it counts after
// that is lost. The caller holds h.mu.
func (h *Hardware) drop(a *adapter) {
	h.adapters = slices.DeleteFunc(h.adapters, is(a))
	h.past.End(a.describe())
}

// closeLate closes an overdue adapter, unless the carrier is closed first.
func (h *Hardware) closeLate(a *adapter) {
	tick := time.NewTicker(withdrawLate)
	defer tick.Stop()
	for a.busy() {
		select {
		case <-h.stop:
			return
		case <-tick.C:
			h.vacate(a, true)
		}
	}
	h.mu.Lock()
	h.late = slices.DeleteFunc(h.late, is(a))
	h.mu.Unlock()
	if err := a.close(true); err != nil {
		h.env.Log.Error("close RDMA adapter", "device", a.name, "error", err)
	}
}

// is returns a predicate that matches the adapter.
func is(a *adapter) func(*adapter) bool { return func(o *adapter) bool { return o == a } }

// busy reports whether a connection has a queue pair or memory of the adapter, or datagrams
// have a queue pair.
func (a *adapter) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tails {
		if !t.copied {
			return true
		}
	}
	return a.pairs+a.datagrams > 0 || a.copying.Load() > 0 || a.calls.Busy()
}
