package hwtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
	"github.com/smcgw/smcgw/verbs/soft"
)

// Library implements [ibv.Library]. Its adapters reach each other.
type Library struct {
	Behaviour

	adapters map[string]*adapter
}

// Behaviour selects what the adapters do that real ones may do. It must not change while adapters are open.
type Behaviour struct {
	// Forgets makes a queue pair's completions vanish when it is reset or destroyed, as mlx5 does.
	Forgets bool
	// Create is the time that it takes to create or destroy a queue pair, or to register memory.
	Create time.Duration
	// RefuseSend and RefuseRecv, if not nil, are called for each request; an error is the provider's refusal.
	RefuseSend func(*ibv.Send) error
	RefuseRecv func(*ibv.Recv) error
	// Attr, if not nil, changes the attributes that adapters report.
	Attr func(*ibv.DeviceAttr)
	// MaxCQE bounds completion queues. Default 32767, as rxe.
	MaxCQE int
}

// New makes a library with n adapters, named fake0 and so on, each with an
// address of 127.0.0.0/8.
func New(n int) (*Library, error) {
	for range 100 {
		l, err := newLibrary(n, uint16(20000+rand.IntN(12000)))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		return l, err
	}
	return nil, errors.New("no free UDP port")
}

func newLibrary(n int, port uint16) (*Library, error) {
	l := &Library{adapters: map[string]*adapter{}}
	for i := range n {
		name := fmt.Sprintf("fake%d", i)
		a, err := newAdapter(l, name, netip.AddrFrom4([4]byte{127, 78, byte(i >> 8), byte(i + 1)}), port)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.adapters[name] = a
	}
	return l, nil
}

// Close closes the adapters. Contexts that are still open are an error.
func (l *Library) Close() error {
	var errs []error
	for _, a := range l.adapters {
		errs = append(errs, a.close())
	}
	return errors.Join(errs...)
}

// Devices implements ibv.Library.
func (l *Library) Devices() (names []string, err error) {
	for name := range l.adapters {
		names = append(names, name)
	}
	return names, nil
}

// Open implements ibv.Library.
func (l *Library) Open(name string) (ibv.Context, error) {
	a, ok := l.adapters[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, ibv.ErrNoDevice)
	}
	return a.open()
}

// Raise raises an event of an adapter's port, or DEVICE_FATAL.
func (l *Library) Raise(name string, typ verbs.EventType) {
	port := uint8(1)
	if typ == verbs.EventDeviceFatal {
		port = 0
	}
	for _, c := range l.adapters[name].contexts() {
		c.raise(ibv.Event{Type: typ, Port: port})
	}
}

// Calls returns how often a function was called on any context of an adapter.
func (l *Library) Calls(name, function string) int {
	a := l.adapters[name]
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls[function]
}

// Comps returns the completion vectors of the queues created on an adapter, in order.
func (l *Library) Comps(name string) []int {
	a := l.adapters[name]
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.comps)
}

// adapter is a device of verbs/soft, driven by a goroutine that executes all calls.
type adapter struct {
	lib  *Library
	name string
	port uint16
	dev  *soft.Device
	loop *loop.Loop

	unwatch context.CancelFunc
	watched sync.WaitGroup

	mu     sync.Mutex // guards everything below
	users  []*conn
	calls  map[string]int
	comps  []int
	subnet *SubnetPort // nil: the link layer is Ethernet
}

// SubnetPort is a port of an InfiniBand subnet, as configured by the subnet administrator.
type SubnetPort struct {
	GID   verbs.GID
	LID   uint16
	PKeys []uint16
	Down  bool
	// NeedsGRH is set for ports like those of virtual functions, which refuse addresses without a DGID.
	NeedsGRH bool
}

// Join makes the port of an adapter part of an InfiniBand subnet, in which all joined adapters reach each other by
// their LIDs, or changes the port.
func (l *Library) Join(name string, p SubnetPort) {
	a := l.adapters[name]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subnet = &p
}

// inSubnet returns the port of an adapter, or nil if its link layer is Ethernet.
func (a *adapter) inSubnet() *SubnetPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.subnet
}

// nowhere is the destination of packets to an unknown LID.
var nowhere = netip.AddrFrom4([4]byte{127, 78, 255, 254})

// routed returns the address of the adapter whose port has a LID.
func (l *Library) routed(lid uint16) netip.Addr {
	for _, a := range l.adapters {
		if p := a.inSubnet(); p != nil && p.LID == lid {
			return a.dev.Port().GIDs[0].GID.Addr()
		}
	}
	return nowhere
}

func newAdapter(l *Library, name string, addr netip.Addr, port uint16) (*adapter, error) {
	dev, err := soft.Open(soft.Config{Name: name, Addrs: []netip.Addr{addr}, UDPPort: port})
	if err != nil {
		return nil, err
	}
	loop, err := loop.New(dev, 0, nil)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	a := &adapter{lib: l, name: name, port: port, dev: dev, loop: loop, calls: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	a.unwatch = cancel
	a.watched.Go(func() { a.watch(ctx) })
	return a, nil
}

// watch forwards the events of the device to the context whose object they concern.
func (a *adapter) watch(ctx context.Context) {
	for {
		e, err := a.dev.Async().Get(ctx)
		if err != nil {
			return
		}
		for _, c := range a.contexts() {
			c.passOn(e)
		}
	}
}

func (a *adapter) open() (ibv.Context, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	c := &conn{a: a, asyncFD: fd, objects: map[uintptr]any{}, ids: map[any]uint64{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.users = append(a.users, c)
	return c, nil
}

func (a *adapter) contexts() []*conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.users)
}

func (a *adapter) leave(c *conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.users = slices.DeleteFunc(a.users, func(o *conn) bool { return o == c })
}

func (a *adapter) close() error {
	var err error
	if n := len(a.contexts()); n > 0 {
		err = fmt.Errorf("%s: %d contexts are still open", a.name, n)
	}
	a.unwatch()
	a.watched.Wait()
	return errors.Join(err, a.loop.Close(), a.dev.Close())
}

// do executes a call.
func (a *adapter) do(function string, f func()) {
	a.mu.Lock()
	a.calls[function]++
	a.mu.Unlock()
	if err := a.loop.Do(f); err != nil {
		panic(fmt.Sprintf("hwtest: %s after the end of the adapter: %v", function, err))
	}
}

// Addr returns the address of an adapter.
func (l *Library) Addr(name string) netip.Addr { return l.adapters[name].dev.Port().GIDs[0].GID.Addr() }

// Waiting returns how many completions of an adapter were not polled yet.
func (l *Library) Waiting(name string) (n int) {
	a := l.adapters[name]
	for _, c := range a.contexts() {
		for _, q := range c.queues() {
			a.do("Waiting", func() {
				q.fetch()
				n += len(q.saved)
			})
		}
	}
	return n
}
