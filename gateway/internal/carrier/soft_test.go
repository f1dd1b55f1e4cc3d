package carrier

import (
	"net/netip"
	"sync"
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
