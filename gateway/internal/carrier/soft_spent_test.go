package carrier

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/verbs"
)

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
