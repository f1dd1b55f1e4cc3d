package carrier

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// TestSoftKeysEndWithTheirLink: no key opens another link's memory, and none is
// left behind.
func TestSoftKeysEndWithTheirLink(t *testing.T) {
	sides := newSides(t, 100)
	sf := sides[0].soft
	stats := sf.units[0].soft.Stats
	before := stats()
	c1, c2 := meet(t, sides, providers["soft"]), meet(t, sides, providers["soft"])
	one, two := c1.link[0].EP.ConnData(), c2.link[0].EP.ConnData()
	keys := map[uint32]bool{one.DataBuf.Key: true, one.TargetSGL.Key: true, two.DataBuf.Key: true, two.TargetSGL.Key: true}
	require.Len(t, keys, 4)
	for _, c := range []*linked{c1, c2} {
		c.close(sides)
	}
	require.Zero(t, sides[0].Pool.Stats().Used)
	require.Equal(t, before.QPs, stats().QPs)
	require.LessOrEqual(t, stats().MRs, before.MRs+3, "only slabs that lie empty, which no peer reaches")
	require.False(t, sf.busy())

	sf.forgetIdle(time.Now().Add(2 * idlePeers))
	require.Empty(t, sf.peers)
	require.Equal(t, before.MRs, stats().MRs)
	require.Zero(t, sides[0].Pool.Stats().Reserved)
}

// TestSoftGoesOnCounting: what the device has counted falls neither while it is given up nor
// when it is opened again.
func TestSoftGoesOnCounting(t *testing.T) {
	sides := newSides(t, 100)
	c := meet(t, sides, providers["soft"])
	c.prove(t, sides)
	c.close(sides)
	sf := sides[0].soft
	device := func() report.DeviceInfo { return sf.Devices()[0] }
	require.NotZero(t, device().Counters["tx_packets"])
	grows := onlyGrows(t, device)
	for range 2 {
		held, gate, given := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		release := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(release)
		sides[0].Shards[0].Post(func() {
			close(held)
			<-gate
		})
		<-held
		go func() { given <- sf.GiveUp() }()
		eventually(t, func() bool { return device().State == report.DeviceDown }, "nothing new")
		grows() // a shard has yet to let go of the device
		release()
		require.NoError(t, <-given)
		grows()
		require.NoError(t, sf.Reclaim())
		require.Equal(t, report.DeviceActive, device().State)
		grows()
	}
}

// TestSoftSendsToThePeerOnly: an offer that names a third address is ignored.
func TestSoftSendsToThePeerOnly(t *testing.T) {
	s := newSides(t, 100)[1]
	r := s.request(&fakeUser{}, sideAddrs[0])
	o := negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}
	o.RoCE.GID = verbs.GIDOf(netip.MustParseAddr("127.77.1.9"))
	_, _, err := s.answer(s.soft, r, o, &negotiate.Proposal{})
	require.ErrorIs(t, err, ErrNotHere)

	l, mine, err := s.soft.Offer(r)
	require.NoError(t, err)
	require.Equal(t, verbs.GIDOf(s.addr), verbs.GID(mine.RoCE.GID))
	require.ErrorIs(t, s.connect(l, o), ErrNotHere)
	s.on(l.Close)
	require.Zero(t, s.Pool.Stats().Used)
}

// TestSoftFollowsAddresses: an address that appears gets a device; one that is
// not the host's has none.
func TestSoftFollowsAddresses(t *testing.T) {
	s := newSides(t, 100)[0]
	sf := s.soft
	late := netip.MustParseAddr("127.77.1.3")
	_, err := sf.PortOf(late)
	require.ErrorIs(t, err, ErrNoDevice, "the host has been asked")
	s.Addrs = func() ([]netip.Addr, error) { return []netip.Addr{s.addr, late}, nil }
	require.Contains(t, sf.asked, late)
	sf.asked[late] = time.Now().Add(time.Hour) // just now, however slow the test is
	_, err = sf.PortOf(late)
	require.ErrorIs(t, err, ErrNoDevice, "the host is not asked for every connection")
	sf.asked[late] = time.Now().Add(-2 * addrPatience)
	port, err := sf.PortOf(late)
	require.NoError(t, err)
	require.Equal(t, "soft1", port.Unit.soft.Name())

	later := netip.MustParseAddr("127.77.1.5")
	s.Addrs = func() ([]netip.Addr, error) { return []netip.Addr{s.addr, late, later}, nil }
	port, err = sf.PortOf(later)
	require.NoError(t, err, "another address behind it is asked for at once")
	require.Equal(t, "soft2", port.Unit.soft.Name())

	r := s.request(&fakeUser{}, sideAddrs[1])
	r.Local = late
	l, o, err := sf.Offer(r)
	require.NoError(t, err)
	require.Equal(t, verbs.GIDOf(late), verbs.GID(o.RoCE.GID))
	s.on(l.Close)
	list := append(s.shm.Devices(), sf.Devices()...)
	require.Len(t, list, 4)
	require.Equal(t, []string{"shm0", "soft0", "soft1", "soft2"}, []string{list[0].Name, list[1].Name, list[2].Name, list[3].Name})
	require.Equal(t, []netip.Addr{netip.MustParseAddr("::ffff:127.77.1.3")}, list[2].GIDs)
}

// TestKnownAddressesBesideAnOpening: while the host is asked for the addresses that it has, which may
// take long, and a device is opened, those that are known go on: shards ask for them.
func TestKnownAddressesBesideAnOpening(t *testing.T) {
	s := newSides(t, 100)[0]
	asked, answer := make(chan struct{}), make(chan struct{})
	first, second := s.addr, twohosts.Addr(3)
	once := sync.OnceFunc(func() { close(asked) })
	s.Addrs = func() ([]netip.Addr, error) {
		once()
		<-answer
		return []netip.Addr{first, second}, nil
	}
	opened := make(chan error, 1)
	go func() {
		_, err := s.soft.PortOf(second)
		opened <- err
	}()
	<-asked
	known := make(chan error, 1)
	go func() {
		_, err := s.soft.PortOf(first)
		r := s.request(&fakeUser{}, second)
		assert.True(t, s.soft.OffersAtOnce(&r))
		known <- err
	}()
	select {
	case err := <-known:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Error("a known address waits")
	}
	close(answer)
	require.NoError(t, <-opened)
}

// TestAnswerBesideAnOpening: while a device is opened for the address of a server's connection, the
// shard goes on with others.
func TestAnswerBesideAnOpening(t *testing.T) {
	sides := newSides(t, 100)
	s, late := sides[1], twohosts.Addr(3)
	asked, answer := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	s.Addrs = func() ([]netip.Addr, error) {
		once()
		<-answer
		return []netip.Addr{s.addr, late}, nil
	}
	l, offer, err := sides[0].soft.Offer(sides[0].request(&fakeUser{}, late))
	require.NoError(t, err)
	defer sides[0].on(l.Close)
	r := s.request(&fakeUser{}, sides[0].addr)
	r.Local = late
	made := make(chan error, 1)
	s.Shards[0].Post(func() {
		s.soft.Answer(r, offer, &negotiate.Proposal{}, func(l *Link, _ negotiate.CarrierOffer, err error) {
			if err == nil {
				l.Close()
			}
			made <- err
		})
	})
	<-asked
	turned := make(chan struct{})
	s.Shards[0].Post(func() { close(turned) })
	select {
	case <-turned:
	case <-time.After(patience):
		t.Error("the shard waits")
	}
	close(answer)
	require.NoError(t, <-made)
}

// movingHost is a host whose addresses change.
type movingHost struct{ now atomic.Pointer[[]netip.Addr] }

func (m *movingHost) has(a ...netip.Addr) { m.now.Store(&a) }

func (m *movingHost) addrs() ([]netip.Addr, error) { return slices.Clone(*m.now.Load()), nil }

// newMovingHost opens the carriers of a host that has an address, and of its peer.
func newMovingHost(t *testing.T, a netip.Addr) (m *movingHost, sides [2]*side) {
	t.Helper()
	m = &movingHost{}
	m.has(a)
	cfg := besideConfig(t)
	cfg.Soft.UDPPort = twohosts.FreePort(t)
	return m, [2]*side{openSide(t, cfg, m.addrs, nil), openSide(t, cfg, always(twohosts.Addr(7)), nil)}
}

// openUnits returns the devices that are open.
func openUnits(sf *Soft) map[*SoftUnit]bool {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	open := map[*SoftUnit]bool{}
	for _, u := range sf.units {
		open[u] = true
	}
	return open
}

// allCounters are those of all devices, each by its name.
func allCounters(sf *Soft) func() report.DeviceInfo {
	return func() report.DeviceInfo {
		all := report.DeviceInfo{Counters: map[string]uint64{}}
		for _, d := range sf.Devices() {
			for name, n := range d.Counters {
				all.Counters[d.Name+" "+name] = n
			}
		}
		return all
	}
}

// TestSoftFollowsEveryChange: an address has a device however often addresses have changed before.
func TestSoftFollowsEveryChange(t *testing.T) {
	stays := twohosts.Addr(3)
	host, sides := newMovingHost(t, stays)
	sf := sides[0].soft
	for i := range 2 * softUnits {
		fresh := netip.AddrFrom4([4]byte{127, 77, 1, byte(10 + i)})
		host.has(stays, fresh)
		port, err := sf.PortOf(fresh)
		require.NoError(t, err, i)
		sf.closeSpent()
		require.Len(t, openUnits(sf), 2)
		require.Contains(t, openUnits(sf), port.Unit)
		_, err = sf.PortOf(stays)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(sf.Devices()), 3, "places are used again")
}

// TestSoftMakesRoom: an address that came when all places were taken has a device at the next try
// after one that has left.
func TestSoftMakesRoom(t *testing.T) {
	host, sides := newMovingHost(t, twohosts.Addr(3))
	sf := sides[0].soft
	var all []netip.Addr
	for i := range softUnits {
		all = append(all, netip.AddrFrom4([4]byte{127, 77, 1, byte(10 + i)}))
		host.has(all...)
		_, err := sf.PortOf(all[i])
		if i < softUnits-1 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrNoDevice)
	}
	sf.retry()
	_, err := sf.PortOf(all[softUnits-1])
	require.NoError(t, err)
	require.Len(t, sf.Devices(), softUnits)
}

// TestSoftClosesWhatNothingUses: a device whose address has left stays for a connection and for
// datagrams, which are told to leave. What it has counted stays, and an address that returns has its
// place again.
func TestSoftClosesWhatNothingUses(t *testing.T) {
	first, second := twohosts.Addr(3), twohosts.Addr(4)
	host, sides := newMovingHost(t, first)
	s, sf := sides[0], sides[0].soft
	var told []verbs.Device
	s.Withdrawn = func(dev verbs.Device) { told = append(told, dev) }
	c := meet(t, sides, providers["soft"])
	c.prove(t, sides)
	port, err := sf.PortOf(first)
	require.NoError(t, err)
	at, err := sf.DatagramsAt(first, second)
	require.NoError(t, err)
	queue, leave, err := at.Hold(s.Shards[0], 1)
	require.NoError(t, err)
	require.Equal(t, port.Unit.Queue(s.Shards[0]), queue)
	grows := onlyGrows(t, allCounters(sf))

	sf.closeSpent()
	require.Empty(t, told, "the host has its address")
	host.has(second)
	_, err = sf.PortOf(second)
	require.NoError(t, err)
	for _, end := range []func(){func() { c.close(sides) }, leave} {
		before := len(told)
		sf.closeSpent()
		require.Len(t, told, before+1)
		require.Equal(t, port.Unit.Device, told[before])
		require.Contains(t, openUnits(sf), port.Unit)
		end()
	}
	leave()
	sf.closeSpent()
	require.NotContains(t, openUnits(sf), port.Unit)
	require.Len(t, openUnits(sf), 1)
	require.Zero(t, s.Pool.Stats().Used)
	list := sf.Devices()
	require.Len(t, list, 2)
	require.Equal(t, "soft1", list[0].Name)
	require.Equal(t, report.DeviceActive, list[0].State)
	require.Equal(t, "soft0", list[1].Name)
	require.Equal(t, report.DeviceAbsent, list[1].State)
	require.NotZero(t, list[1].Counters["tx_packets"])
	grows()

	_, _, err = at.Hold(s.Shards[0], 1)
	require.ErrorIs(t, err, ErrNoDevice, "of what PortOf has returned before")
	_, err = sf.peerFor(softKey{unit: port.Unit, remote: sides[1].addr})
	require.ErrorIs(t, err, ErrNoDevice)
	host.has(first, second)
	again, err := sf.PortOf(first)
	require.NoError(t, err)
	require.Equal(t, "soft0", again.Unit.soft.Name())
	grows()
}

// TestSoftKeepsAllCounters: what any device has counted falls at no time while soft is given up,
// however long a shard takes, nor when fewer devices are opened again.
func TestSoftKeepsAllCounters(t *testing.T) {
	first, second := twohosts.Addr(3), twohosts.Addr(4)
	host, sides := newMovingHost(t, first)
	s, sf := sides[0], sides[0].soft
	host.has(first, second)
	for _, s.addr = range []netip.Addr{first, second} {
		c := meet(t, sides, providers["soft"])
		c.prove(t, sides)
		c.close(sides)
	}
	counters := allCounters(sf)
	require.NotZero(t, counters().Counters["soft0 tx_packets"])
	require.NotZero(t, counters().Counters["soft1 tx_packets"])
	grows := onlyGrows(t, counters)

	goOn, over := make(chan struct{}), make(chan error, 1)
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	s.Shards[0].Post(func() { <-goOn })
	go func() { over <- sf.GiveUp() }()
	eventually(t, func() bool { return len(openUnits(sf)) == 0 }, "they are being closed")
	grows()
	release()
	require.NoError(t, <-over)
	grows()
	for _, d := range sf.Devices() {
		require.Equal(t, report.DeviceDown, d.State)
	}
	host.has(first)
	require.NoError(t, sf.Reclaim())
	require.Len(t, openUnits(sf), 1)
	grows()
}
