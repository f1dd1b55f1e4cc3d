package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/inspect"
	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/ebpf/internal/sockdiag"
)

var (
	// ErrNoFlow means that there is no entry for the tuple.
	ErrNoFlow = errors.New("no flow entry")
	// ErrReplaced means that the entry belongs to another connection on the same tuple, with another ISN.
	ErrReplaced = errors.New("flow entry of another connection")
	// ErrState means that the entry is in none of the expected states. The error is a [StateError].
	ErrState = errors.New("flow entry in another state")
	// ErrNoDevice means that our programs are not attached to the device.
	ErrNoDevice = errors.New("not a wire device")
	// ErrInUse means that a live process holds the devices of this generation.
	ErrInUse = errors.New("another smcgw runs in this network namespace, which can have one: end it, or take over from it by its admin socket (smcgw up --takeover)")
)

// Datapath is the attached kernel side. Its methods may be called from any goroutine. Close ends Events and waits for
// all other calls.
type Datapath struct {
	cfg Config
	log *slog.Logger

	carriage           // replaced by [Datapath.Carry] and [Datapath.Count], holding op and mu
	ns        *os.File // our network namespace
	nl        *netlink.Handle
	routeNL   *netlink.Handle // for the shards, because nl waits while the host configures devices
	traces    *traces
	events    *ringbuf.Reader
	offering  []link.Link // connect programs, sockops
	routes    netdev.Offering
	monitor   *monitor
	wireMTU   atomic.Int64
	eventLock sync.Mutex // one reader of events
	drain     sync.Mutex // guards drained; the buffer is unmapped once it is set
	drained   bool
	beat      *bpf.Memory // the heartbeat map, mapped so that a heartbeat takes no system call
	loaded    time.Time   // when it was mapped
	loadedAt  uint64      // the same time on the kernel's clock

	// What shards read without mu.
	inForce atomic.Pointer[Policy]
	present atomic.Pointer[map[int]struct{}] // the keys of devices
	looked  atomic.Pointer[netdev.Looked]
	opened  atomic.Bool // OpenDatagram was called, and an entry may exist

	// op is held for reading by every operation and for writing by Close.
	op     sync.RWMutex
	closed bool

	tracesAt   uint32                 // offset of smcgw_traces in the memory of its section
	retiredAt  int64                  // offset of smcgw_retired, likewise
	provedAt   time.Time              // time of the last proof of legs; owned by the thread that proves
	provedWith []link.AttachedProgram // the sockops programs before that proof; same owner
	ways       ways                   // same owner
	again      chan struct{}          // signals ProveAgain
	besideNow  atomic.Bool            // beside is not nil
	control    control

	// mu guards everything below. It is held while programs are attached, which takes long, so no method of Prompt
	// takes it.
	mu         sync.Mutex
	beside     *Neighbour // nil if there is none, or no longer
	retired    bool       // another datapath takes the new connections
	policy     *Policy
	rulesSince uint32            // the epoch since which rule indexes are those of policy
	cgroups    map[uint64]uint64 // the cgroups that the patterns of policy match
	devices    map[int]*device

	own      map[smcgwPeerKey]smcgwOwn // content of the map of own addresses
	fullTold map[string]bool           // maps for which a Warn was logged because they are full
}

// Open creates the devices and maps and attaches all programs in the network namespace of the calling thread. It
// attaches sockops last, so that every offer that leaves is recorded. No offer is made before the first
// [Datapath.Heartbeat].
func Open(cfg Config) (*Datapath, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	cfg = cfg.withDefaults()
	if err := inspect.CheckKernel(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d := &Datapath{
		cfg: cfg, log: cfg.Logger, carriage: newCarriage(cfg.Counting), devices: map[int]*device{}, again: make(chan struct{}, 1),
		own: map[smcgwPeerKey]smcgwOwn{}, fullTold: map[string]bool{},
	}
	d.retired = cfg.Beside != nil
	if cfg.Beside != nil && cfg.Beside.AppIndex != 0 { // a neighbour that only counts is not in the way
		d.beside = cfg.Beside
		d.besideNow.Store(true)
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Lacking reports whether err means that the kernel lacks something that every datapath needs, whatever its
// configuration.
func Lacking(err error) bool {
	return errors.Is(err, inspect.ErrKernel) || errors.Is(err, bpf.ErrNotSupported)
}

// open runs the steps of Open in the order of their dependencies. The TUNs come first because the kernel closes the
// lowest descriptors last at exit.
func (d *Datapath) open() error {
	return do(d.steps())
}

// step is a step of Open or Carry.
type step struct {
	name string
	do   func() error
}

// do runs steps until one fails.
func do(steps []step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (d *Datapath) steps() []step {
	if d.counting {
		return []step{
			{"namespace", d.openNamespace},
			{"programs", d.loadFirst},
			{"state", d.setupState},
			{"devices", d.sync},
			{"attach counting", d.attachCounting},
			{"monitor", d.startMonitor},
		}
	}
	return slices.Concat([]step{{"namespace", d.openNamespace}}, d.deviceSteps(), []step{
		{"programs", d.loadFirst},
		{"state", d.setupState},
		{"attach steering", d.attachSteering},
		{"devices", d.sync},
		{"proof of legs", d.proveLegs},
		{"attach offering", d.attachOffering},
		{"monitor", d.startMonitor},
	})
}

// deviceSteps returns the steps that create the devices of a datapath that carries.
func (d *Datapath) deviceSteps() []step {
	return []step{
		{"tun", d.openTUNs},
		{"sockets", d.openDiag},
		{"links", d.setupTUNs},
		{"legs", d.setupLegs},
	}
}

// openTUNs opens the app TUN and the wire TUN.
func (d *Datapath) openTUNs() (err error) {
	if d.appTUN, err = openTUN(d.cfg.appName()); err != nil {
		return err
	}
	d.wireTUN, err = openTUN(d.cfg.wireName())
	return err
}

// openDiag opens the sockets for queries about other sockets.
func (d *Datapath) openDiag() (err error) {
	if d.cfg.Legs == nil {
		return errors.New("no namespace for legs")
	}
	request, dump := d.cfg.Legs.Diag()
	d.legDiag, d.dumpDiag = sockdiag.On(request), sockdiag.On(dump)
	d.hostDiag, err = sockdiag.Open()
	return err
}

// openNamespace opens handles that refer to this namespace whichever thread uses them later.
func (d *Datapath) openNamespace() (err error) {
	if d.ns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	for _, to := range []**netlink.Handle{&d.nl, &d.routeNL} {
		if *to, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("route netlink: %w", err)
		}
	}
	return nil
}

// Close detaches everything in reverse order and removes the devices. It is idempotent.
func (d *Datapath) Close() error {
	_ = d.closeEvents()
	d.monitor.stop() // before op is taken, since the monitor may need it
	d.op.Lock()
	defer d.op.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	errs := []error{closeLinks(d.offering), d.detachDevices(), d.endCarriage(d.nl)}
	for _, nl := range []*netlink.Handle{d.nl, d.routeNL} {
		if nl != nil {
			nl.Close()
		}
	}
	errs = append(errs, d.traces.close())
	if d.ns != nil {
		errs = append(errs, d.ns.Close())
	}
	return errors.Join(errs...)
}

// closeLinks closes links in reverse order.
func closeLinks(links []link.Link) error {
	var errs []error
	for _, l := range slices.Backward(links) {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// enter begins an operation; leave ends it.
func (d *Datapath) enter() error {
	d.op.RLock()
	if d.closed {
		d.op.RUnlock()
		return fmt.Errorf("datapath: %w", os.ErrClosed)
	}
	return nil
}

func (d *Datapath) leave() { d.op.RUnlock() }

// AppTUN returns the descriptor of the app TUN: IFF_NO_PI, virtio net header of 10 bytes, offload CSUM, non-blocking.
// It remains owned by d. Reading returns datagrams of local applications that are to be carried, as whole IP packets
// whose checksum may be partial. A written packet arrives as if from the network if its destination is the local side
// of a tuple with an entry ([Datapath.OpenDatagram], or one that the programs made), and is sent to the network if its
// source is. Anything else is dropped and counted.
func (d *Datapath) AppTUN() int { return d.appTUN }

// WireTUN returns the descriptor of the wire TUN for netstack: IFF_NO_PI, virtio net header of 10 bytes, offloads CSUM,
// TSO4 and TSO6, non-blocking. It remains owned by d.
func (d *Datapath) WireTUN() int { return d.wireTUN }

// WireMTU returns the MTU of the wire TUN, the smallest of the devices that carry offers. It changes with theirs.
func (d *Datapath) WireMTU() int { return int(d.wireMTU.Load()) }

// SetListener makes the gateway's listeners the target of SYNs of completing flows. Both are sockets in [Config.Legs];
// v6 may be negative if the kernel has no IPv6.
func (d *Datapath) SetListener(v4, v6 int) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	for slot, fd := range []int{v4, v6} {
		if fd < 0 {
			continue
		}
		if err := d.objs.Listen.Put(uint32(slot), uint64(fd)); err != nil {
			return fmt.Errorf("listener %d: %w", slot, err)
		}
	}
	return nil
}

// Prompt has the methods that shards call. None of them waits for what the host is configuring, such as programs being
// attached to devices.
type Prompt interface {
	Heartbeat() error
	ProveAgain()
	Shed(reason uint8) error
	Decide(q Query) Verdict

	Flow(t Tuple) (Flow, error)
	Transition(t Tuple, isn uint32, to State, from ...State) error
	Delete(t Tuple, isn uint32, from ...State) error
	InjectApp(pkt []byte) error
	DestroySocket(t Tuple) (bool, error)
	LegWaits(t Tuple) (bool, error)
	ForgetTimeWait(t Tuple) (bool, error)
	ForgetRequest(t Tuple) (bool, error)

	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error

	SetDatagramPeer(p DatagramPeer) error
	ForgetDatagramPeer(addr netip.Addr, port uint16) error
	OpenDatagram(t Tuple, ifindex, rule int) error
	CloseDatagram(t Tuple, reason uint8, ttl time.Duration) error
	DatagramIfindex(t Tuple) (int, error)
	RouteDevice(local, remote netip.Addr) (ifindex int, err error)
}

var _ Prompt = (*Datapath)(nil)
