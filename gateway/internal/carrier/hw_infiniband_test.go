package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

// ipoib is the number of the network device of IPoIB of a host.
const ipoib = 5

// subnetPorts are the ports of two hosts of a subnet. The partition of the connections is
// not the first in their tables.
func subnetPorts() [2]hwtest.SubnetPort {
	gid := func(last byte) verbs.GID {
		return verbs.GID{0: 0xfe, 1: 0x80, 9: 2, 10: 0xc9, 11: 3, 15: last}
	}
	return [2]hwtest.SubnetPort{
		{GID: gid(1), LID: 3, PKeys: []uint16{0xffff, 0, 0x8005}},
		{GID: gid(2), LID: 7, PKeys: []uint16{0xffff, 0x0005}}, // a limited member
	}
}

// subnetHost is a host with an adapter of a fake library whose port is one of a subnet. It
// answers for the administrator, as the kernel does on InfiniBand (TestPathOnInfiniBand of
// package rdmacm).
type subnetHost struct {
	libraryHost
	gid verbs.GID

	mu     sync.Mutex // guards everything below
	device int        // by which the host sends
	noWay  error      // of the route
	noLink error      // of the device
	path   rdmacm.Path
	err    error
	shut   error         // of Open
	silent chan struct{} // not nil: there is no answer until it is closed
	asked  int
}

func (h *subnetHost) List(layer verbs.LinkLayer) ([]string, error) {
	if layer != verbs.LinkLayerInfiniBand {
		return nil, nil
	}
	return h.libraryHost.List(layer)
}

func (h *subnetHost) Open(name string, vectors int) (AdapterPort, error) {
	h.mu.Lock()
	shut := h.shut
	h.mu.Unlock()
	if shut != nil {
		return nil, shut
	}
	return h.libraryHost.Open(name, vectors)
}

func (h *subnetHost) route(netip.Addr, netip.Addr) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.device, h.noWay
}

func (h *subnetHost) gidOf(ifindex int) (verbs.GID, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ifindex == ipoib {
		return h.gid, h.noLink
	}
	return verbs.GID{}, h.noLink
}

func (h *subnetHost) resolve(ctx context.Context, _, _ netip.Addr) (rdmacm.Path, error) {
	h.mu.Lock()
	h.asked++
	silent := h.silent
	h.mu.Unlock()
	if silent != nil {
		select {
		case <-silent:
		case <-ctx.Done():
			return rdmacm.Path{}, ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.path, h.err
}

// change changes what the host is told.
func (h *subnetHost) change(fn func(h *subnetHost)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn(h)
}

// ibSides are two gateways on a subnet.
type ibSides struct {
	sides [2]*side
	hosts [2]*subnetHost
	lib   *hwtest.Library
}

func newIBSides(t *testing.T, timeout time.Duration) *ibSides {
	t.Helper()
	return newIBSidesOf(t, timeout, subnetPorts())
}

func newIBSidesOf(t *testing.T, timeout time.Duration, ports [2]hwtest.SubnetPort) *ibSides {
	t.Helper()
	lib, err := hwtest.New(2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lib.Close()) })
	s := &ibSides{lib: lib}
	for i := range s.sides {
		lib.Join(fmt.Sprintf("fake%d", i), ports[i])
	}
	for i := range s.sides {
		own, peer := ports[i], ports[1-i]
		adapter := fmt.Sprintf("fake%d", i)
		s.hosts[i] = &subnetHost{libraryHost: libraryHost{lib, adapter}, gid: own.GID, device: ipoib, path: rdmacm.Path{
			SGID: own.GID, DGID: peer.GID, SLID: own.LID, DLID: peer.LID, PKey: 0x8005, PKeyIndex: uint16(len(own.PKeys) - 1),
			SL: uint8(3 + i), MTU: verbs.MTU2048, Rate: 7, FlowLabel: 0x1234, TrafficClass: 0x20, PacketLifetime: 18,
		}}
		addr := lib.Addr(adapter)
		cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceIB}}
		cfg.Limits.HandshakeTimeout = timeout
		s.sides[i] = openSideOn(t, cfg, func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil }, nil, s.hosts[i])
	}
	return s
}

// carry is carry on InfiniBand.
func (s *ibSides) carry(t *testing.T) *linked { return carry(t, s.sides) }

// query asks for the attributes of the queue pair of a link.
func (s *side) query(l *Link) (attr verbs.QPAttr) {
	s.on(func() { attr = l.QP.Query() })
	return attr
}

// TestIBConnects: both ends say where they are, and are connected by what the
// administrators of their subnets have answered.
func TestIBConnects(t *testing.T) {
	s := newIBSides(t, patience)
	l, offer, err := s.sides[0].hw.Offer(s.sides[0].request(&fakeUser{}, s.sides[1].addr))
	require.NoError(t, err)
	require.Equal(t, negotiate.CarrierIB, l.Kind)
	require.Equal(t, negotiate.CarrierIB, offer.Kind)
	require.False(t, offer.Mixed)
	want := subnetPorts()
	require.Equal(t, negotiate.IBEndpoint{
		GID: want[0].GID, LID: 3, PKey: 0x8005, MTU: 2048, SL: 3, QPN: l.QP.Num(), PSN: offer.IB.PSN,
	}, offer.IB)
	require.True(t, Answers(s.sides[1].hw, []negotiate.CarrierOffer{offer}, 0))
	s.sides[0].on(l.Close)

	c := s.carry(t)
	require.Equal(t, uint16(0x0005), c.to.IB.PKey)
	for i, l := range c.link {
		at := s.sides[i].query(l)
		require.Equal(t, verbs.AHAttr{DLID: want[1-i].LID, SL: uint8(3 + i), Port: 1}, at.AH, "within the subnet a packet needs no GID")
		require.EqualValues(t, len(want[i].PKeys)-1, at.PKeyIndex)
	}
	info := s.sides[0].device(t)
	require.Equal(t, []any{report.DeviceIB, report.CarrierIB, report.DeviceActive, uint16(0)}, []any{info.Kind, info.Carrier, info.State, info.UDPPort})
	c.close(s.sides)
	for i, side := range s.sides {
		eventually(t, side.isEmpty, "the memory is back")
		require.Equal(t, 1, s.hosts[i].asked, "one question for all links")
	}
}

// TestIBBytes: connections on the subnet get their bytes, and break as others do.
func TestIBBytes(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		t.Run(fmt.Sprintf("breaks %v", breaks), func(t *testing.T) {
			s := newIBSides(t, patience)
			var all sync.WaitGroup
			failures := make(chan error, 4)
			for w := range uint64(cap(failures)) {
				all.Go(func() {
					for i := range uint64(4) {
						if err := talk(s.sides, w*4+i+1, breaks); err != nil {
							failures <- err
							return
						}
					}
				})
			}
			all.Wait()
			close(failures)
			for err := range failures {
				t.Error(err)
			}
			for _, side := range s.sides {
				eventually(t, side.isEmpty, "the memory is back")
			}
		})
	}
}

// TestIBPortThatNeedsAGlobalHeader: a port such as that of a virtual function takes no address
// without a GID, within its subnet either.
func TestIBPortThatNeedsAGlobalHeader(t *testing.T) {
	ports := subnetPorts()
	ports[0].NeedsGRH = true
	s := newIBSidesOf(t, patience, ports)
	c := s.carry(t)
	require.Equal(t, verbs.AHAttr{
		DGID: ports[1].GID, DLID: 7, SL: 3, FlowLabel: 0x1234, TrafficClass: 0x20, Port: 1,
	}, s.sides[0].query(c.link[0]).AH)
	require.Equal(t, verbs.AHAttr{DLID: 3, SL: 4, Port: 1}, s.sides[1].query(c.link[1]).AH, "the other port needs none")
	c.close(s.sides)
}

// TestIBThroughRouters: behind a router the LID of the peer means nothing here, its GID
// does.
func TestIBThroughRouters(t *testing.T) {
	s := newIBSides(t, patience)
	s.hosts[1].change(func(h *subnetHost) { h.path.HopLimit = 64 })
	l, offer, err := s.sides[0].hw.Offer(s.sides[0].request(&fakeUser{}, s.sides[1].addr))
	require.NoError(t, err)
	offer.IB.LID = 0x77
	answer, _, err := s.sides[1].answer(s.sides[1].hw, s.sides[1].request(&fakeUser{}, s.sides[0].addr), offer, &negotiate.Proposal{})
	require.NoError(t, err)
	require.Equal(t, verbs.AHAttr{
		DGID: subnetPorts()[0].GID, DLID: 3, SL: 4, FlowLabel: 0x1234, HopLimit: 64, TrafficClass: 0x20, Port: 1,
	}, s.sides[1].query(answer).AH)
	s.sides[0].on(l.Close)
	s.sides[1].on(answer.Close)
}

// TestIBSendsToThePeerOnly: a queue pair that is not at the end of the path to the peer, or
// in another partition, is no path; the path is asked for again, since it may be the old one.
func TestIBSendsToThePeerOnly(t *testing.T) {
	for name, change := range map[string]func(*negotiate.IBEndpoint){
		"lid":          func(e *negotiate.IBEndpoint) { e.LID = 8 },
		"gid":          func(e *negotiate.IBEndpoint) { e.GID[15] = 9 },
		"partition":    func(e *negotiate.IBEndpoint) { e.PKey = 0x8006 },
		"both limited": func(e *negotiate.IBEndpoint) { e.PKey = 0x0005 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newIBSides(t, patience)
			l, offer, err := s.sides[0].hw.Offer(s.sides[0].request(&fakeUser{}, s.sides[1].addr))
			require.NoError(t, err)
			wrong := offer
			change(&wrong.IB)
			r := s.sides[1].request(&fakeUser{}, s.sides[0].addr)
			for range 2 {
				_, _, err = s.sides[1].answer(s.sides[1].hw, r, wrong, &negotiate.Proposal{})
				require.ErrorIs(t, err, ErrNotHere)
			}
			require.Equal(t, 2, s.hosts[1].asked)
			require.Zero(t, s.sides[1].device(t).Use["qps"], "nothing was made")
			answer, to, err := s.sides[1].answer(s.sides[1].hw, r, offer, &negotiate.Proposal{})
			require.NoError(t, err)
			if name != "both limited" { // the client is a full member
				change(&to.IB)
				_, err = s.sides[0].prove(l, to)
				require.ErrorIs(t, err, ErrNotHere, "an answer is held against the path, too")
			}
			s.sides[0].on(l.Close)
			s.sides[1].on(answer.Close)
			for _, side := range s.sides {
				eventually(t, side.isEmpty, "the memory is back")
			}
		})
	}
}

// TestIBWithoutPath: a subnet that leads to no such peer, or begins elsewhere, leaves the
// connection to the next carrier, for a reason that is the peer's or the network's.
func TestIBWithoutPath(t *testing.T) {
	s := newIBSides(t, patience)
	h, side := s.hosts[0], s.sides[0]
	h.change(func(h *subnetHost) { h.err = &rdmacm.EventError{Event: "ROUTE_ERROR"} })
	require.ErrorIs(t, side.offer(s.sides[1].addr), ErrNoPath)
	require.ErrorIs(t, side.offer(addrB), ErrNoPath)
	h.change(func(h *subnetHost) { h.err, h.path.SLID = nil, 2 })
	eventually(t, func() bool { return errors.Is(side.offer(s.sides[1].addr), ErrNoPath) && h.times() > 2 }, "the path of a port that was there before")
	h.change(func(h *subnetHost) { h.path.SLID, h.path.PKeyIndex = 3, 1 })
	eventually(t, func() bool {
		side.hw.net.(*infiniBand).paths.forget()
		return errors.Is(side.offer(s.sides[1].addr), ErrNoPath)
	}, "a partition that was taken back")
	h.change(func(h *subnetHost) { h.path.PKeyIndex = 2 })
	side.hw.net.(*infiniBand).paths.forget()
	eventually(t, func() bool { return side.offer(s.sides[1].addr) == nil }, "found")
	h.change(func(h *subnetHost) { h.device = ipoib + 1 })
	eventually(t, func() bool { return errors.Is(side.offer(s.sides[1].addr), ErrNoAdapter) }, "a connection over Ethernet")
}

func (h *subnetHost) times() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// TestIBLatePath: an administrator that is slow costs a connection the part of its
// handshake that is meant for that, no shard waits, and the answer is there for the next.
func TestIBLatePath(t *testing.T) {
	s := newIBSides(t, 100*time.Millisecond)
	h, side := s.hosts[0], s.sides[0]
	silent := make(chan struct{})
	h.change(func(h *subnetHost) { h.silent = silent })
	for range 3 {
		require.ErrorIs(t, side.offer(s.sides[1].addr), ErrNoPath)
	}
	require.Equal(t, 1, h.times(), "it is asked once")
	close(silent)
	eventually(t, func() bool { return side.offer(s.sides[1].addr) == nil }, "the answer came")
	require.Equal(t, 1, h.times())
}

// TestIBLeaves: connections leave a LID that the port has lost, and paths that are others
// now; a subnet that only has a new administrator moves none.
func TestIBLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		event  verbs.EventType
		change func(*ibSides)
		stays  bool
	}{
		"own LID": {event: verbs.EventLIDChange, change: func(s *ibSides) {
			port := subnetPorts()[0]
			port.LID = 30
			s.lib.Join("fake0", port)
		}},
		"peer's LID":  {event: verbs.EventClientReregister, change: func(s *ibSides) { s.hosts[0].change(func(h *subnetHost) { h.path.DLID = 9 }) }},
		"P_Key table": {event: verbs.EventPKeyChange, change: func(s *ibSides) { s.hosts[0].change(func(h *subnetHost) { h.path.PKeyIndex = 0 }) }},
		"service":     {event: verbs.EventSMChange, change: func(s *ibSides) { s.hosts[0].change(func(h *subnetHost) { h.path.SL = 1 }) }},
		"nothing":     {event: verbs.EventSMChange, change: func(*ibSides) {}, stays: true},
		"no answer": {event: verbs.EventSMChange, change: func(s *ibSides) {
			s.hosts[0].change(func(h *subnetHost) { h.err = &rdmacm.EventError{Event: "ROUTE_ERROR"} })
		}, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newIBSides(t, patience)
			side := s.sides[0]
			link := s.carry(t)
			c.change(s)
			s.lib.Raise("fake0", c.event)
			if c.stays {
				eventually(t, func() bool { return s.hosts[0].times() == 2 }, "the path is asked for again")
				a := side.hw.open()[0]
				a.kick() // taken when the event before was dealt with
				eventually(t, func() bool { return len(a.moved) == 0 }, "looked around")
				require.Zero(t, side.gone())
				link.close(s.sides)
			} else {
				eventually(t, func() bool { return side.gone() == 1 }, "the connection leaves")
				side.returns[0]()
				s.sides[1].on(link.link[1].Close)
			}
			for _, side := range s.sides {
				eventually(t, side.isEmpty, "the memory is back")
			}
		})
	}
}

// TestIBPortGoesDown: PORT_ERR is what it is on Ethernet.
func TestIBPortGoesDown(t *testing.T) {
	s := newIBSides(t, patience)
	side := s.sides[0]
	c := s.carry(t)
	port := subnetPorts()[0]
	port.Down = true
	s.lib.Join("fake0", port)
	s.lib.Raise("fake0", verbs.EventPortErr)
	eventually(t, func() bool { return side.gone() == 1 }, "a second later")
	require.ErrorIs(t, side.offer(s.sides[1].addr), ErrNoDevice)
	s.lib.Join("fake0", subnetPorts()[0])
	s.lib.Raise("fake0", verbs.EventPortActive)
	eventually(t, func() bool { return side.offer(s.sides[1].addr) == nil }, "it is used again")
	side.returns[0]()
	s.sides[1].on(c.link[1].Close)
}

// TestIBWithdrawn: an operator takes an adapter away as on Ethernet.
func TestIBWithdrawn(t *testing.T) {
	s := newIBSides(t, patience)
	c := s.carry(t)
	n, err := s.sides[0].hw.Withdraw("fake0")
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, 1)
	require.Equal(t, 1, s.sides[0].gone())
	require.ErrorIs(t, s.sides[0].offer(s.sides[1].addr), ErrNoDevice, "the host has one")
	s.hosts[0].change(func(h *subnetHost) { h.device = ipoib + 1 })
	eventually(t, func() bool { return errors.Is(s.sides[0].offer(s.sides[1].addr), ErrNoAdapter) }, "a connection over Ethernet")
	s.sides[0].returns[0]()
	s.sides[1].on(c.link[1].Close)
}

// TestIBThatCannotBeOpened: a connection over IPoIB has an adapter at its address, which is not in use.
func TestIBThatCannotBeOpened(t *testing.T) {
	s := newIBSides(t, patience)
	s.hosts[0].change(func(h *subnetHost) { h.shut = verbs.ErrNoMemory })
	side := openSideOn(t, config.Config{Carriers: []report.DeviceKind{report.DeviceIB}}, always(s.sides[0].addr), nil, s.hosts[0])
	require.False(t, side.hw.OffersAtOnce(&Request{}), "the kernel is asked")
	require.ErrorIs(t, side.offer(s.sides[1].addr), ErrNoDevice)
	s.hosts[0].change(func(h *subnetHost) { h.device = ipoib + 1 })
	require.ErrorIs(t, side.offer(addrB), ErrNoAdapter, "over Ethernet")
}

// TestIBHostDoesNotTell: that the route of a connection cannot be asked for, or the device that it leads by, is no word
// about the adapters. A route by a device that is not the gateway's is.
func TestIBHostDoesNotTell(t *testing.T) {
	s := newIBSides(t, patience)
	h, side := s.hosts[0], s.sides[0]
	h.change(func(h *subnetHost) { h.noLink = fmt.Errorf("network device %d: %w", ipoib, unix.EMFILE) })
	err := side.offer(s.sides[1].addr)
	require.ErrorIs(t, err, unix.EMFILE)
	require.NotErrorIs(t, err, ErrNotHere)
	h.change(func(h *subnetHost) { h.noLink, h.noWay = nil, fmt.Errorf("route: %w", unix.ENOBUFS) })
	err = side.offer(addrB) // which is asked for
	require.ErrorIs(t, err, unix.ENOBUFS)
	require.NotErrorIs(t, err, ErrNotHere)
	h.change(func(h *subnetHost) { h.noWay = errors.New("not a wire device") })
	require.ErrorIs(t, side.offer(addrA), ErrNoAdapter)
}

// TestIBOnThisHost: a host without IPoIB has no such carrier, and its name is known.
func TestIBOnThisHost(t *testing.T) {
	s := openSide(t, config.Config{Carriers: []report.DeviceKind{report.DeviceIB}}, always(mixedAddrs[0]), nil, verbs.RoCEUDPPort)
	info := s.device(t)
	require.Equal(t, []any{"ib0", report.DeviceIB, report.DeviceAbsent, "this host has no RDMA adapter whose link layer is InfiniBand"},
		[]any{info.Name, info.Kind, info.State, info.Error})
	require.True(t, s.hw.OffersAtOnce(&Request{}))
	require.ErrorIs(t, s.offer(addrB), ErrNoAdapter)
}
