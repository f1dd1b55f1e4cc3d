package kernel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// Device is the adapter whose queue pairs a Manager connects: a verbs.Device.
type Device interface {
	Attr() verbs.DeviceAttr
	Port() verbs.PortAttr
}

// file executes commands: a *rdmacm.File.
type file interface {
	// Call executes a command and writes the kernel's answer to answer.
	Call(c rdmacm.Command, answer []byte) error
	// Next waits for an event and writes it to answer. It returns when ctx ends, or with os.ErrClosed after Close.
	Next(ctx context.Context, answer []byte) error
	// Close destroys all identifiers.
	Close() error
}

// ErrOtherDevice is an address or request that belongs to an adapter other than the manager's.
var ErrOtherDevice = fmt.Errorf("address of another device: %w", syscall.EADDRNOTAVAIL)

// Manager makes connections between queue pairs of a device and those of peers. Any goroutine may call its methods and
// those of what it makes, but unless they say otherwise not in the loop of a vector.
type Manager struct {
	dev    Device
	file   file
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	lastUID atomic.Uint64

	mu     sync.Mutex // guards everything below
	ids    map[uint64]*identifier
	err    error // why it has ended
	ending bool
}

// New opens the kernel's manager for a device. On hosts without it the error is rdmacm.ErrAbsent.
func New(dev Device) (*Manager, error) {
	f, err := rdmacm.Open()
	if err != nil {
		return nil, fmt.Errorf("connection manager of the kernel: %w", err)
	}
	return newManager(dev, f), nil
}

func newManager(dev Device, f file) *Manager {
	m := &Manager{dev: dev, file: f, ids: map[uint64]*identifier{}}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.tasks.Go(func() { m.dispatch(ctx) })
	return m
}

// dispatch is the goroutine that passes every event to its identifier.
func (m *Manager) dispatch(ctx context.Context) {
	answer := make([]byte, rdmacm.EventSize)
	for {
		clear(answer)
		err := m.file.Next(ctx, answer)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			m.end(fmt.Errorf("events of the connection manager: %w", err))
			return
		}
		var ev event
		if err := ev.parse(answer); err == nil {
			m.deliver(ev)
		}
	}
}

// deliver passes an event to its identifier, which may be gone. In that case a request, which comes with an identifier
// of its own, is refused.
func (m *Manager) deliver(ev event) {
	m.mu.Lock()
	d := m.ids[ev.UID]
	m.mu.Unlock()
	switch {
	case d != nil:
		d.deliver(ev)
	case ev.Kind == rdmacm.ConnectRequest:
		m.refuse(ev.ID)
	}
}

// refuse destroys the identifier of a request, which tells the peer.
func (m *Manager) refuse(id uint32) {
	m.background(func() { _ = m.file.Call(destroyID{id}, make([]byte, destroyID{}.AnswerSize())) })
}

// background runs f in a goroutine that Close waits for. After Close it does nothing: all identifiers are destroyed.
func (m *Manager) background(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ending {
		m.tasks.Go(f)
	}
}

// end ends all waits.
func (m *Manager) end(why error) {
	m.mu.Lock()
	if m.err == nil {
		m.err = why
	}
	ids := m.ids
	m.ids = map[uint64]*identifier{}
	m.mu.Unlock()
	for _, d := range ids {
		d.lose(why)
	}
}

// Close ends everything that the manager made: waiting calls return cm.ErrClosed, the peers of connections are told
// once that they are over, and queue pairs are left to their owners.
func (m *Manager) Close() error {
	m.mu.Lock()
	if m.ending {
		m.mu.Unlock()
		return nil
	}
	m.ending = true
	var ids []*identifier
	for _, d := range m.ids {
		ids = append(ids, d)
	}
	m.mu.Unlock()
	m.end(cm.ErrClosed) // before peers are told: a peer's answer must not become the reason
	for _, d := range ids {
		_ = d.do(disconnect{d.handle}) // an error means that there is no connection
	}
	m.cancel()
	err := m.file.Close()
	m.tasks.Wait()
	return err
}

// identifier is a listener, a connection or an attempt at one (struct rdma_cm_id of the kernel).
type identifier struct {
	m      *Manager
	uid    uint64
	handle uint32
	lost   chan struct{} // closed when the manager has ended

	calls sync.RWMutex // guards gone: held by commands, and for writing by destroy
	gone  bool         // destroyed: the kernel may have reused the handle

	mu      sync.Mutex  // guards everything below
	events  chan event  // until there is a handler
	handler func(event) // must not block
	onLoss  func(error) // likewise; after handler is set
	err     error
}

// maxEvents exceeds the number of events that an identifier gets before it is established.
const maxEvents = 16

// identify registers a new identifier for events.
func (m *Manager) identify() (*identifier, error) {
	d := &identifier{m: m, uid: m.lastUID.Add(1), lost: make(chan struct{}), events: make(chan event, maxEvents)}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return nil, m.err
	case m.ending:
		return nil, cm.ErrClosed
	}
	m.ids[d.uid] = d
	return d, nil
}

// create makes an identifier in the kernel, for an RC queue pair.
func (m *Manager) create(space cm.PortSpace) (*identifier, error) {
	d, err := m.identify()
	if err != nil {
		return nil, err
	}
	c := rdmacm.CreateID{UID: d.uid, Space: uint16(space), QP: verbs.QPTRC}
	answer := make([]byte, c.AnswerSize())
	if err := m.file.Call(c, answer); err != nil {
		m.forget(d)
		return nil, err
	}
	d.handle = native.Uint32(answer)
	return d, nil
}

// adopt registers the identifier of a request.
func (m *Manager) adopt(handle uint32) (*identifier, error) {
	d, err := m.identify()
	if err != nil {
		return nil, err
	}
	d.handle = handle
	return d, nil
}

func (m *Manager) forget(d *identifier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ids, d.uid)
}

// do executes a command that has no answer.
func (d *identifier) do(c rdmacm.Command) error {
	_, err := d.ask(c)
	return err
}

// ask executes a command and returns the answer.
func (d *identifier) ask(c rdmacm.Command) ([]byte, error) {
	d.calls.RLock()
	defer d.calls.RUnlock()
	if d.gone {
		return nil, cm.ErrClosed
	}
	answer := make([]byte, c.AnswerSize())
	return answer, d.m.file.Call(c, answer)
}

// destroy destroys the identifier in the background, because the kernel waits until its own work for it is done. It is
// idempotent.
func (d *identifier) destroy() {
	d.calls.Lock()
	gone := d.gone
	d.gone = true
	d.calls.Unlock()
	if !gone {
		d.m.forget(d)
		d.m.refuse(d.handle)
	}
}

// deliver passes an event to the handler, or queues it until there is one.
func (d *identifier) deliver(ev event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler != nil {
		d.handler(ev)
		return
	}
	select {
	case d.events <- ev:
	default: // the kernel does not send that many
	}
}

// follow sets the handler of events, which first gets the queued ones, and of the manager's end.
func (d *identifier) follow(handler func(event), onLoss func(error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handler, d.onLoss = handler, onLoss
	for len(d.events) > 0 {
		handler(<-d.events)
	}
	if d.err != nil {
		onLoss(d.err)
	}
}

// lose ends all waits for the identifier.
func (d *identifier) lose(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = why
		close(d.lost)
		if d.onLoss != nil {
			d.onLoss(why)
		}
	}
}

// loss returns why the identifier was lost.
func (d *identifier) loss() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// await waits for an event of this kind, an error, or the end of ctx.
func (d *identifier) await(ctx context.Context, kind rdmacm.EventKind) (event, error) {
	for {
		select {
		case ev := <-d.events:
			if ev.Kind == kind {
				return ev, nil
			}
			if err := ev.failure(); err != nil {
				return ev, err
			}
		case <-d.lost:
			return event{}, d.loss()
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}
