package datagram

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	ippacket "github.com/smcgw/smcgw/packet"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
	"github.com/smcgw/smcgw/verbs/soft"
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// pairAddrs are the addresses of both hosts.
var pairAddrs = twohosts.Addrs()

// restingAllocations is more than engines that do nothing allocate in that time.
func restingAllocations(d time.Duration) int64 { return 10 * int64(d/(50*time.Millisecond)) }

// machine is a host with devices and loops, and what an engine needs of a gateway.
type machine struct {
	t         testing.TB
	id        [16]byte
	shards    []*loop.Shard
	devices   []driven
	providers []Provider
	ids       atomic.Uint64
	most      atomic.Int64
	off       atomic.Bool
	unnamed   atomic.Bool // the policy names no peer
	engine    atomic.Pointer[Engine]

	mu   sync.Mutex // guards past
	past []report.ConnInfo
}

var _ Gateway = (*machine)(nil)

// newMachine returns a machine with n running loops and no device.
func newMachine(t testing.TB, id byte, n int) *machine {
	t.Helper()
	m := &machine{t: t, id: [16]byte{id}}
	m.most.Store(1 << 16)
	if runtime.GOMAXPROCS(0) < n+2 { // a busy loop holds its P
		runtime.GOMAXPROCS(n + 2)
	}
	for i := range n {
		s, err := loop.New(i, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		m.shards = append(m.shards, s)
		s.Start()
	}
	return m
}

func (m *machine) NextID() uint64 { return m.ids.Add(1) }

func (m *machine) MaxFlows() int { return int(m.most.Load()) }

func (m *machine) Off() bool { return m.off.Load() }

// NamesPeer implements Gateway: peers are asked.
func (m *machine) NamesPeer(netip.Addr) bool { return !m.unnamed.Load() }

func (*machine) Proven(netip.Addr, report.Carrier) {}

func (*machine) NoCommonKey(netip.Addr) {}

func (m *machine) Ended(c report.ConnInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.past = append(m.past, c)
}

// ended returns the flows that are over, the last one first.
func (m *machine) ended() (list []report.ConnInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.past {
		list = append([]report.ConnInfo{c}, list...)
	}
	return list
}

// flows returns the flows there are.
func (m *machine) flows() []report.ConnInfo { return m.engine.Load().Flows() }

func (m *machine) snapshot() (s report.Snapshot) {
	m.engine.Load().Snapshot(&s)
	return s
}

// setOff switches as an operator does.
func (m *machine) setOff(off bool) {
	m.off.Store(off)
	if off {
		m.engine.Load().Quiesce(negotiate.ReasonOff)
	} else {
		m.engine.Load().Resume()
	}
}

// close ends what open and the devices have begun.
func (m *machine) close() {
	m.engine.Load().Close()
	for _, s := range m.shards {
		s.Halt()
		s.Detach()
	}
	m.engine.Load().Release()
	for _, d := range m.devices {
		for _, drv := range d.drivers {
			require.NoError(m.t, drv.Close())
		}
		require.NoError(m.t, d.dev.Close())
	}
	for _, s := range m.shards {
		s.CloseFDs()
	}
}

// driven is a device whose vectors are in the hands of the loops.
type driven struct {
	dev     verbs.Device
	queues  []*loop.Queue
	drivers []verbs.Driver
}

func (m *machine) drive(dev verbs.Device) driven {
	d := driven{dev: dev}
	for i, s := range m.shards {
		cq, err := dev.CreateCQ(verbs.CQAttr{Depth: 1 << 18, Vector: i})
		require.NoError(m.t, err)
		drv, err := dev.Drive(i, s)
		require.NoError(m.t, err)
		q := loop.NewQueue(cq)
		d.queues, d.drivers = append(d.queues, q), append(d.drivers, drv)
		s.Post(func() {
			s.AddQueue(q)
			s.AddDriver(drv)
		})
	}
	m.devices = append(m.devices, d)
	return d
}

// openSoft opens a device on one address.
func (m *machine) openSoft(at netip.Addr, port uint16) {
	dev, err := soft.Open(soft.Config{Addrs: []netip.Addr{at}, UDPPort: port, Vectors: len(m.shards), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(m.t, err)
	m.providers = append(m.providers, fakeNetwork{driven: m.drive(dev), kind: negotiate.CarrierSoft})
}

// fakeNetwork is a network of one device.
type fakeNetwork struct {
	driven
	kind  negotiate.CarrierKind
	mixed bool
}

func (n fakeNetwork) Kind() negotiate.CarrierKind { return n.kind }

func (n fakeNetwork) DatagramsAt(local, _ netip.Addr) (carrier.DatagramDevice, error) {
	if verbs.GIDOf(local) != n.dev.Port().GIDs[0].GID {
		return carrier.DatagramDevice{}, carrier.ErrNotHere
	}
	return carrier.DatagramDevice{
		Device: n.dev, Port: n.dev.Port(), Mixed: n.mixed,
		Hold: func(*loop.Shard, int) (*loop.Queue, func(), error) { return n.queues[0], func() {}, nil },
	}, nil
}

// openShm opens a device whose rendezvous is in a directory.
func (m *machine) openShm(dir string) {
	dev, err := shm.Open(shm.Config{
		Dir: dir, GatewayID: m.id, Vectors: len(m.shards), Logger: slog.New(slog.DiscardHandler),
		OnPeerDown: func(p *shm.Peer) { m.engine.Load().PeerDown(p) },
	})
	require.NoError(m.t, err)
	_, err = dev.Listen()
	require.NoError(m.t, err)
	m.providers = append(m.providers, &fakeMemory{driven: m.drive(dev), shm: dev, offers: map[netip.Addr]*shm.Peer{}})
}

// fakeMemory is a memory that lets no peer go. The keeper alone calls it, but for Attach.
type fakeMemory struct {
	driven
	held     atomic.Int64 // users of its peers
	shm      *shm.Device
	offers   map[netip.Addr]*shm.Peer
	mu       sync.Mutex // guards attached
	attached []*shm.Peer
}

func (*fakeMemory) Kind() negotiate.CarrierKind { return negotiate.CarrierSHM }

func (m *fakeMemory) Datagrams(*loop.Shard) (carrier.DatagramDevice, *loop.Queue) {
	return carrier.DatagramDevice{Device: m.dev, Port: m.dev.Port()}, m.queues[0]
}

func (m *fakeMemory) PeerFor(to netip.Addr, _ bool) (*carrier.ShmPeer, error) {
	p := m.offers[to]
	if p == nil || p.Err() != nil {
		var err error
		if p, err = m.shm.Offer(); err != nil {
			return nil, err
		}
		m.offers[to] = p
	}
	return &carrier.ShmPeer{Peer: p}, nil
}

func (m *fakeMemory) Known(key [16]byte) *carrier.ShmPeer {
	for _, p := range m.offers {
		if p.Key() == key && p.Err() == nil {
			return &carrier.ShmPeer{Peer: p}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.attached {
		if p.Key() == key && p.Err() == nil {
			return &carrier.ShmPeer{Peer: p}
		}
	}
	return nil
}

func (m *fakeMemory) Attach(ctx context.Context, _ netip.Addr, name string, key [16]byte) (*carrier.ShmPeer, error) {
	p, err := m.shm.Attach(ctx, name, key)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached = append(m.attached, p)
	return &carrier.ShmPeer{Peer: p}, nil
}

func (m *fakeMemory) Hold(*carrier.ShmPeer) { m.held.Add(1) }

func (m *fakeMemory) Leave(*carrier.ShmPeer) { m.held.Add(-1) }

// fakeSteering is the steering of datagrams of a host.
type fakeSteering struct{ *twohosts.Datagrams }

// steer writes a datagram of a local program as the programs hand it over.
func (d *fakeSteering) steer(t testing.TB, ends endPair, payload []byte) {
	t.Helper()
	b := make([]byte, headroom+len(payload))
	copy(b[headroom:], payload)
	d.Write(t, b[putUDP(b, headroom, len(payload), ends):])
}

// receive returns the next datagram the gateway has written.
func (d *fakeSteering) receive(t testing.TB) udpPacket {
	t.Helper()
	b := d.Next(patience)
	require.NotNil(t, b, "no datagram came")
	p, err := parseUDP(b)
	require.NoError(t, err)
	checkSum(t, b)
	return p
}

// checkSum completes the checksum as the kernel does and verifies it.
func checkSum(t testing.TB, b []byte) {
	t.Helper()
	p, err := parseUDP(b)
	require.NoError(t, err)
	require.EqualValues(t, vnetNeedsCsum, b[0])
	hlen := p.payloadAt() - vnetLen - ippacket.UDPLen
	ip := append([]byte(nil), b[vnetLen:]...)
	ippacket.UDP(ip[hlen:]).SetChecksum(^ippacket.Sum(ip[hlen:], 0)) // what NEEDS_CSUM asks for
	whole, err := ippacket.ParseIP(ip)
	require.NoError(t, err)
	require.True(t, whole.HeaderSumOK(), "IPv4 header")
	require.True(t, whole.TransportSumOK(), "UDP")
}

var _ Steering = (*fakeSteering)(nil)

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
